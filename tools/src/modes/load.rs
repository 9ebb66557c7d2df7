//! Loads: phases of messages, with the behaviour of the reader and the background, from a file.

use super::Noise;
use crate::exit::{Explain, Failure};
use crate::experiment::by_word;
use crate::measure::Size;
use crate::paths;
use doorbell::mode::ModeRequest;
use serde::de::{self, Deserializer, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::path::Path;

/// The shortest message: the length of its head.
pub const LEAST: usize = 32;
/// The longest message.
const MOST: usize = 16 << 20;
/// The most bytes of messages under way at once.
const MOST_AT_ONCE: usize = 512 << 20;

/// The loads that come with the command.
const BUILT_IN: [(&str, &str); 3] = [
    ("bursts.json", include_str!("../../loads/bursts.json")),
    ("mixed.json", include_str!("../../loads/mixed.json")),
    ("bulk.json", include_str!("../../loads/bulk.json")),
];

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The name.
    pub name: String,
    /// The purpose, in a sentence.
    #[serde(default)]
    pub about: String,
    /// The phases, one after the other. The reader has read all of a phase before the next one begins.
    pub phases: Vec<Phase>,
}

/// A part of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// The name.
    pub name: String,
    /// The number of messages.
    pub messages: u64,
    /// The lengths of messages.
    pub sizes: Sizes,
    /// The number of messages that are due at once.
    #[serde(default = "one")]
    pub burst: u64,
    /// The microseconds between two bursts; 0: a burst follows as soon as the writer has handed over the one before it.
    #[serde(default)]
    pub every_us: u64,
    /// The most messages under way at once. At this number the writer waits for the oldest one.
    #[serde(default = "usual_window")]
    pub window: usize,
    /// Where the bytes of messages lie.
    #[serde(default)]
    pub memory: Place,
    /// The mode to request under the policy.
    #[serde(default, with = "by_word")]
    pub asks: ModeRequest,
    /// How the reader behaves.
    #[serde(default)]
    pub reader: Reader,
    /// Other messages that are sent meanwhile.
    #[serde(default)]
    pub background: Option<Background>,
}

/// Where bytes lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In private memory.
    #[default]
    Private,
    /// In a region, at both ends.
    Region,
}

/// How a reader behaves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reader {
    /// The microseconds for which the reader computes after each message.
    #[serde(default)]
    pub work_us: f64,
    /// The milliseconds for which the reader sleeps...
    #[serde(default)]
    pub stall_ms: u64,
    /// ...and the number of messages between two sleeps; 0: never.
    #[serde(default)]
    pub stall_every: u64,
}

/// Long messages of low priority to the same reader, for the time of a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// The mode to request, in all runs.
    #[serde(with = "by_word")]
    pub mode: ModeRequest,
    /// The length of the messages.
    #[serde(default = "usual_background")]
    pub size: Size,
    /// The number of messages that are always under way.
    #[serde(default = "usual_background_window")]
    pub window: usize,
}

/// The lengths of messages, with their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes(pub Vec<Weighted>);

/// A length with its weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weighted {
    /// The length.
    pub size: Size,
    /// How often this length comes, relative to the others.
    #[serde(default = "one")]
    pub weight: u64,
}

fn one() -> u64 {
    1
}

fn usual_window() -> usize {
    64
}

fn usual_background() -> Size {
    Size(256 << 10)
}

fn usual_background_window() -> usize {
    4
}

impl Sizes {
    /// One length for all messages.
    pub fn one(size: Size) -> Self {
        Self(vec![Weighted { size, weight: 1 }])
    }

    /// The longest.
    pub fn most(&self) -> usize {
        self.0.iter().map(|weighted| weighted.size.0).max().unwrap_or(0)
    }

    /// One of the lengths, chosen by any number.
    pub fn pick(&self, number: u64) -> usize {
        let mut left = number % self.0.iter().map(|weighted| weighted.weight).sum::<u64>().max(1);
        for weighted in &self.0 {
            match left.checked_sub(weighted.weight) {
                Some(rest) => left = rest,
                None => return weighted.size.0,
            }
        }
        LEAST
    }
}

impl Load {
    /// The load in a file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let hint = "LOAD is a JSON file: see --help for its form, or write one with --generate --save FILE";
        let text = paths::open(path).and_then(std::io::read_to_string);
        let text = text.or_usage(format_args!("cannot read the load {name}"), hint)?;
        Self::parse(&name, &text)
    }

    /// The loads that come with the command.
    pub fn built_in() -> Result<Vec<Self>, Failure> {
        BUILT_IN.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// The load in a text, which errors call by this name.
    pub fn parse(name: &str, text: &str) -> Result<Self, Failure> {
        let load: Self = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let what = error.to_string();
            let what = what.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&what);
            let hint = "`doorbell modes --help` says what a load holds";
            Failure::usage(format!("{name}, line {line}, column {column}: {what}"), hint)
        })?;
        load.check().map_err(|(what, hint)| Failure::usage(format!("{name}: {what}"), hint))?;
        Ok(load)
    }

    /// Checks the limits that the types do not express.
    fn check(&self) -> Result<(), (String, &'static str)> {
        if self.phases.is_empty() || self.phases.len() > 32 {
            return Err((format!("there are {} phases", self.phases.len()), "a load has 1 to 32"));
        }
        for phase in &self.phases {
            let is_in = |what: &str, number: u64, least: u64, most: u64| {
                let told = || (format!("phase '{}': {what} is {number}", phase.name), "it is out of its range: see --help");
                (least..=most).contains(&number).then_some(()).ok_or_else(told)
            };
            is_in("messages", phase.messages, 1, 50_000_000)?;
            is_in("burst", phase.burst, 1, 50_000_000)?;
            is_in("every_us", phase.every_us, 0, 10_000_000)?;
            is_in("window", phase.window as u64, 1, 4096)?;
            is_in("the number of sizes", phase.sizes.0.len() as u64, 1, 32)?;
            is_in("stall_ms", phase.reader.stall_ms, 0, 1000)?;
            if !(0.0..=10_000.0).contains(&phase.reader.work_us) {
                return Err((format!("phase '{}': work_us is {}", phase.name, phase.reader.work_us), "it is 0 to 10000"));
            }
            for weighted in &phase.sizes.0 {
                is_in("a size", weighted.size.0 as u64, LEAST as u64, MOST as u64)?;
                is_in("a weight", weighted.weight, 1, 1_000_000)?;
            }
            let mut at_once = phase.sizes.most() * phase.window;
            if let Some(background) = &phase.background {
                is_in("the size of the background", background.size.0 as u64, LEAST as u64, MOST as u64)?;
                is_in("the window of the background", background.window as u64, 1, 64)?;
                at_once += background.size.0 * background.window;
            }
            if at_once > MOST_AT_ONCE {
                let what = format!("phase '{}': {} would be on their way at once", phase.name, Size(at_once));
                return Err((what, "make `window` smaller: window times the longest size is 512MiB at most"));
            }
        }
        Ok(())
    }

    /// The same load with fewer or more messages.
    pub fn scaled(mut self, factor: f64) -> Self {
        for phase in &mut self.phases {
            phase.messages = ((phase.messages as f64 * factor).round() as u64).max(1);
        }
        self
    }

    /// The number of all messages.
    pub fn messages(&self) -> u64 {
        self.phases.iter().map(|phase| phase.messages).sum()
    }

    /// A random load, the same one for the same seed. It has three to five phases in any order, and each phase overloads some modes.
    pub fn random(seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        let mut kinds = [Kind::Flood, Kind::Long, Kind::Beside, Kind::any(&mut noise), Kind::any(&mut noise)];
        let count = 3 + noise.below(3) as usize;
        let kinds = &mut kinds[..count];
        for at in (1..count).rev() {
            kinds.swap(at, noise.below(at as u64 + 1) as usize);
        }
        let mut phases: Vec<_> = kinds.iter().map(|kind| kind.phase(&mut noise)).collect();
        for (number, phase) in phases.iter_mut().enumerate() {
            phase.name = format!("{} {}", number + 1, phase.name);
        }
        Self { name: format!("random-{seed}"), about: format!("By chance, from seed {seed}."), phases }
    }
}

/// The kind of a random phase.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// More small messages at once than a network can take.
    Flood,
    /// Long messages, one after the other.
    Long,
    /// Messages of any size, while another flow fills a link of the network.
    Beside,
}

impl Kind {
    fn any(noise: &mut Noise) -> Self {
        [Kind::Flood, Kind::Long, Kind::Beside][noise.below(3) as usize]
    }

    fn phase(self, noise: &mut Noise) -> Phase {
        const SMALL: &[usize] = &[32, 64, 128, 256, 1 << 10];
        const LONG: &[usize] = &[128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20];
        const ANY: &[usize] = &[256, 8 << 10, 64 << 10, 256 << 10, 1 << 20];
        let mut one_of = |choices: &[usize]| choices[noise.below(choices.len() as u64) as usize];
        let (name, sizes, window, messages, burst) = match self {
            Kind::Flood => ("flood", SMALL, one_of(&[512, 1024, 2048]), one_of(&[30_000, 60_000]), one_of(&[1, 256, 4096])),
            Kind::Long => ("long", LONG, one_of(&[4, 8, 16]), one_of(&[200, 400]), 1),
            Kind::Beside => ("beside", ANY, one_of(&[8, 16]), one_of(&[300, 600]), 1),
        };
        let mut weighted = || Weighted { size: Size(one_of(sizes)), weight: one_of(&[1, 2, 4, 8]) as u64 };
        let sizes = Sizes(vec![weighted(), weighted(), weighted()]);
        let memory = if one_of(&[0, 1]) == 0 { Place::Private } else { Place::Region };
        let background =
            Background { mode: "udp/0".parse().unwrap_or_default(), size: usual_background(), window: one_of(&[2, 4]) };
        // With a reader that is slower than all modes, all modes would look alike.
        let work_us = if matches!(self, Kind::Flood) { one_of(&[0, 1, 2]) as f64 } else { 0.0 };
        Phase {
            name: name.into(),
            messages: messages as u64,
            sizes,
            burst: burst as u64,
            every_us: 0,
            window,
            memory,
            asks: ModeRequest::default(),
            reader: Reader { work_us, ..Reader::default() },
            background: matches!(self, Kind::Beside).then_some(background),
        }
    }
}

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [Weighted { size, .. }] => size.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Sizes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 64 or \"64KiB\", or a list of {\"size\": \"64KiB\", \"weight\": 3}")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Sizes, E> {
                Ok(Sizes::one(Size::saturating(bytes)))
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Sizes, E> {
                word.parse().map(Sizes::one).map_err(|_| E::invalid_value(de::Unexpected::Str(word), &self))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Sizes, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(Sizes)
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"name": "n", "phases": [{"name": "p", "messages": 10, "sizes": "64KiB", "asks": "udp/1",
        "reader": {"work_us": 1.5, "stall_ms": 2, "stall_every": 5}, "background": {"mode": "udp/0"}}]}"#;

    fn refused(text: &str) -> String {
        Load::parse("x.json", text).unwrap_err().to_string()
    }

    #[test]
    fn a_load_is_read_and_what_is_left_out_is_usual() {
        let load = Load::parse("x.json", GOOD).unwrap();
        let phase = &load.phases[0];
        assert_eq!((phase.sizes.most(), phase.burst, phase.window, phase.memory), (64 << 10, 1, 64, Place::Private));
        assert_eq!(phase.asks, "udp/1".parse().unwrap());
        assert_eq!(phase.background.as_ref().unwrap().size, Size(256 << 10));
        assert_eq!(Load::parse("again", &serde_json::to_string(&load).unwrap()).unwrap(), load);
    }

    #[test]
    fn mistakes_say_where_they_are_and_what_was_expected() {
        for (text, with, said) in [
            (
                "\"messages\"",
                "\"mesages\"",
                "x.json, line 1, column 48: unknown field `mesages`, expected one of `name`, `messages`",
            ),
            ("\"64KiB\"", "\"64 apples\"", "expected a size such as 64 or \"64KiB\", or a list of"),
            ("\"64KiB\"", "[{\"size\": 64, \"wait\": 1}]", "unknown field `wait`, expected `size` or `weight`"),
            ("\"64KiB\"", "[]", "phase 'p': the number of sizes is 0"),
            ("\"64KiB\"", "8", "phase 'p': a size is 8"),
            ("\"64KiB\"", "\"16MiB\"", "make `window` smaller"),
            ("\"udp/1\"", "\"tcp\"", "a fabric (shm, udp), a link (from 0), a protocol"),
            ("10,", "-10,", ": invalid value: integer `-10`, expected u64"),
            ("10,", "0,", "phase 'p': messages is 0"),
            ("\"stall_ms\": 2", "\"stall_ms\": 2000", "stall_ms is 2000"),
            ("1.5", "-1", "work_us is -1"),
        ] {
            assert!(GOOD.contains(text), "{text}");
            let found = refused(&GOOD.replace(text, with));
            assert!(found.contains(said), "{with}: {found}");
        }
        assert!(refused("{").contains("EOF while parsing"), "{}", refused("{"));
        assert!(refused(r#"{"name": "n", "phases": []}"#).contains("there are 0 phases"));
    }

    #[test]
    fn loads_that_are_there_are_good() {
        let names: Vec<_> = Load::built_in().unwrap().into_iter().map(|load| load.name).collect();
        assert_eq!(names, ["bursts", "mixed", "bulk"]);
    }

    #[test]
    fn any_seed_makes_a_good_load_and_always_the_same() {
        for seed in 0..500 {
            let load = Load::random(seed);
            let text = serde_json::to_string(&load).unwrap();
            assert_eq!(Load::parse("random", &text).unwrap(), Load::random(seed));
        }
        assert_ne!(Load::random(1).phases, Load::random(2).phases);
    }

    #[test]
    fn sizes_come_as_often_as_they_weigh() {
        let sizes = Sizes(vec![Weighted { size: Size(64), weight: 3 }, Weighted { size: Size(128), weight: 1 }]);
        let found: Vec<_> = (0..8).map(|number| sizes.pick(number)).collect();
        assert_eq!(found, [64, 64, 64, 128, 64, 64, 64, 128]);
    }
}
