//! Lists of processors, in the notation of `taskset` and of the kernel.

use crate::exit::Failure;
use crate::processes::check_processors;
use nix::sched::CpuSet;
use std::str::FromStr;

/// Processors, in the order in which nodes get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let unknown = |part: &str| format!("'{part}' is no processor; hint: lists look like 0,1 or 0-3,8");
        let mut list = Vec::new();
        for part in word.split(',') {
            let number = |word: &str| word.parse().ok().filter(|cpu| *cpu < CpuSet::count()).ok_or_else(|| unknown(part));
            match part.split_once('-') {
                None => list.push(number(part)?),
                Some((from, to)) => {
                    let (from, to) = (number(from)?, number(to)?);
                    if from > to {
                        return Err(unknown(part));
                    }
                    list.extend(from..=to);
                }
            }
        }
        Ok(Self(list))
    }
}

impl CpuList {
    /// The processors to which nodes are bound in turn, if this process may run on all of them.
    pub fn checked(&self) -> Result<&[usize], Failure> {
        check_processors("--bind", &self.0).map(|_| &self.0[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_people_write() {
        for (word, list) in [("0", vec![0]), ("1,0,1", vec![1, 0, 1]), ("0-2,7", vec![0, 1, 2, 7]), ("3-3", vec![3])] {
            assert_eq!(word.parse(), Ok(CpuList(list)), "{word}");
        }
        for word in ["", ",", "0,", "a", "-1", "2-1", "0-", "0-999999999", "1024"] {
            assert!(word.parse::<CpuList>().unwrap_err().contains("hint: "), "{word}");
        }
    }
}
