//! The file of `doorbell run --config`: the options of the command, and the environments of the nodes.
//!
//! The command line counts before the environment, and the environment before the file.

use super::RunArgs;
use super::cpus::CpuList;
use crate::environment::{self as names, Domain, variable};
use crate::exit::{Explain, Failure};
use crate::paths;
use crate::text::time;
use doorbell::{Address, PortKind, Progress, Role, Wait};
use serde::de::{Error as _, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The most bytes of a file.
const BYTES_MOST: u64 = 1 << 20;
/// The variables that the command sets, and what to use instead of setting them.
const SET: [(&str, &str); 12] = [
    (names::DOMAIN, "use the key `domain`"),
    (names::NODE, "the command numbers the nodes"),
    (names::NODES, "use the key `nodes`"),
    (names::ROLE, "use the key `role`"),
    (names::PROGRESS, "use the key `progress`"),
    (names::WAIT, "use the key `wait`"),
    (names::SPACE, "use the key `space`"),
    (names::LISTEN, "use the key `listen`"),
    (names::CONNECT, "use the key `connect`"),
    (names::SEEK, "a run has `listen` or `connect`"),
    (names::PORT, "use the key `port`"),
    (names::KEY_FILE, "use the key `key-file`"),
];

/// The keys of a file, which have the names of the options.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Config {
    nodes: Option<Count>,
    domain: Option<Word<Domain>>,
    space: Option<PathBuf>,
    role: Option<Words<Role>>,
    progress: Option<Word<Progress>>,
    wait: Option<Word<Wait>>,
    bind: Option<Joined<CpuList>>,
    grace: Option<Word<Grace>>,
    keep: Option<bool>,
    listen: Option<Words<Address>>,
    connect: Option<Word<Address>>,
    key_file: Option<PathBuf>,
    port: Option<Word<PortKind>>,
    no_prefix: Option<bool>,
    program: Option<PathBuf>,
    arguments: Vec<String>,
    environment: Environment,
    node: BTreeMap<Number, OfNode>,
}

/// The table of one node.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct OfNode {
    role: Option<Word<Role>>,
    environment: Environment,
}

/// The settings that only a file can have.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Variables of all nodes.
    environment: BTreeMap<String, String>,
    /// By node: its variables and its role.
    nodes: BTreeMap<u16, (BTreeMap<String, String>, Option<Role>)>,
}

impl Extras {
    /// The variables of a node.
    pub fn variables(&self, node: u16) -> impl Iterator<Item = (&String, &String)> {
        self.environment.iter().chain(self.nodes.get(&node).into_iter().flat_map(|(variables, _)| variables))
    }

    /// The role of a node, if its table has one.
    pub fn role(&self, node: u16) -> Option<Role> {
        self.nodes.get(&node).and_then(|(_, role)| *role)
    }
}

impl RunArgs {
    /// Takes the values from the file that neither the command line nor the environment has. Returns the file's directory of segments, if it
    /// counts.
    pub fn complete(&mut self) -> Result<Option<PathBuf>, Failure> {
        let Some(path) = self.config.clone() else { return Ok(None) };
        let config = Config::read(&path)?;
        let file = path.display();
        let count = config.nodes.map(|Count(count)| count);
        fill(&mut self.nodes, names::NODES, count)?;
        fill(&mut self.domain, names::DOMAIN, config.domain.map(|Word(domain)| domain))?;
        fill(&mut self.progress, names::PROGRESS, config.progress.map(|Word(progress)| progress))?;
        fill(&mut self.wait, names::WAIT, config.wait.map(|Word(wait)| wait))?;
        fill(&mut self.port.given, names::PORT, config.port.map(|Word(port)| port))?;
        fill(&mut self.key_file, names::KEY_FILE, config.key_file)?;
        self.bind = self.bind.take().or(config.bind.map(|Joined(bind)| bind));
        self.grace = self.grace.or(config.grace.map(|Word(Grace(grace))| grace));
        self.keep = self.keep.or(config.keep);
        self.no_prefix = self.no_prefix.or(config.no_prefix);
        let mut nodes = BTreeMap::new();
        // A table beyond a smaller number of the command line or the environment is for a larger run.
        let most = self.nodes.max(count);
        for (Number(node), OfNode { role, environment }) in config.node {
            match most {
                Some(count) if node >= count => {
                    let what = format!("{file}: there is a table for node {node}, and there are {count} nodes");
                    return Err(Failure::usage(what, format!("nodes have the numbers from 0 to {}", count - 1)));
                }
                _ => drop(nodes.insert(node, (environment.0, role.map(|Word(role)| role)))),
            }
        }
        if self.role.is_empty()
            && let Some(role) =
                variable::<Role>(names::ROLE)?.filter(|_| nodes.values().any(|(_, role)| role.is_some()) || config.role.is_some())
        {
            self.role = vec![role];
        }
        if self.role.is_empty() {
            self.role = config.role.map_or_else(Vec::new, |Words(roles)| roles);
        } else {
            nodes.values_mut().for_each(|(_, role)| *role = None);
        }
        self.extras = Extras { environment: config.environment.0, nodes };
        self.fill_network(config.listen, config.connect, &file)?;
        if self.command.is_empty() {
            let hint = "say it after `--`, or by the key `program`";
            let program = config.program.ok_or_else(|| Failure::usage(format!("{file} names no program"), hint))?;
            self.command = std::iter::once(program.into()).chain(config.arguments.into_iter().map(Into::into)).collect();
        }
        if self.nodes.is_none() {
            return Err(Failure::usage(format!("{file} does not say how many nodes"), "use the key `nodes`, or -n"));
        }
        let is_said = std::env::var_os(names::SPACE).is_some();
        Ok(config.space.filter(|_| !is_said))
    }

    /// Where nodes of other machines are. One place of the command line or of the environment replaces all of the file.
    fn fill_network(
        &mut self,
        listen: Option<Words<Address>>,
        connect: Option<Word<Address>>,
        file: &impl Display,
    ) -> Result<(), Failure> {
        let one_of = |what: &dyn Display| Failure::usage(format!("{what}: nodes listen or connect, not both"), "leave one out");
        if listen.is_some() && connect.is_some() {
            return Err(one_of(&format_args!("{file} has listen and connect")));
        }
        if !self.listen.is_empty() || self.connect.is_some() || (listen.is_none() && connect.is_none()) {
            return Ok(());
        }
        let said: (Option<List>, Option<Address>) = (variable(names::LISTEN)?, variable(names::CONNECT)?);
        match said {
            (Some(_), Some(_)) => {
                return Err(one_of(&format_args!("the environment has {} and {}", names::LISTEN, names::CONNECT)));
            }
            (None, None) => {
                self.listen = listen.map_or_else(Vec::new, |Words(listen)| listen);
                self.connect = connect.map(|Word(connect)| connect);
            }
            (listen, connect) => {
                self.listen = listen.map_or_else(Vec::new, |List(listen)| listen);
                self.connect = connect;
            }
        }
        Ok(())
    }
}

/// Fills in the file's value, or that of the variable in its place, where the command line has none.
fn fill<T: FromStr<Err: Display>>(said: &mut Option<T>, name: &str, file: Option<T>) -> Result<(), Failure> {
    if said.is_none()
        && let Some(file) = file
    {
        *said = Some(variable(name)?.unwrap_or(file));
    }
    Ok(())
}

impl Config {
    fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let mut text = String::new();
        let read = paths::open(path).and_then(|file| file.take(BYTES_MOST + 1).read_to_string(&mut text));
        read.or_usage(format_args!("cannot read the configuration {name}"), "`doorbell run --help` shows one")?;
        if text.len() as u64 > BYTES_MOST {
            return Err(Failure::usage(
                format!("the configuration {name} is longer than 1 MiB"),
                "`doorbell run --help` shows one",
            ));
        }
        toml::from_str(&text).map_err(|error| malformed(&name, &text, &error))
    }
}

/// The failure of a file, with the line.
fn malformed(name: &impl Display, text: &str, error: &toml::de::Error) -> Failure {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let message = error.message().trim().replace('\n', "; ");
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    let (what, hint) = match unknown {
        Some((key, rest)) => {
            let known = rest.trim_start_matches(", expected one of ").trim_start_matches(", expected ").replace('`', "");
            (format!("there is no key '{key}'"), format!("the keys here are {known}"))
        }
        None if message.contains("; hint: ") => (message, String::new()),
        None => (message, "`doorbell run --help` shows a configuration".into()),
    };
    Failure::usage(format!("{name}, line {line}: {what}"), hint)
}

/// A text that is read as on the command line.
#[derive(Debug)]
struct Word<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A word or a number.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a word or a number")]
enum Scalar {
    Word(String),
    Number(i64),
    Fraction(f64),
    Truth(bool),
}

impl Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scalar::Word(word) => word.fmt(f),
            Scalar::Number(number) => number.fmt(f),
            Scalar::Fraction(number) => number.fmt(f),
            Scalar::Truth(truth) => truth.fmt(f),
        }
    }
}

/// One of these or a list.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a word, a number, or a list of these")]
enum Scalars {
    One(Scalar),
    Several(Vec<Scalar>),
}

/// A value that is read as one text with commas, as on the command line. In the file it may be a list.
#[derive(Debug)]
struct Joined<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Joined<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Scalars::deserialize(deserializer)? {
            Scalars::One(word) => word.to_string(),
            Scalars::Several(words) => words.iter().map(Scalar::to_string).collect::<Vec<_>>().join(","),
        };
        Word::deserialize(text.into_deserializer()).map(|Word(value)| Self(value))
    }
}

/// Several values, each of which is read alone.
#[derive(Debug)]
struct Words<T>(Vec<T>);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Words<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Joined(text) = Joined::<String>::deserialize(deserializer)?;
        text.split(',').map(|word| word.trim().parse().map_err(D::Error::custom)).collect::<Result<_, _>>().map(Self)
    }
}

/// Addresses of a variable.
struct List(Vec<Address>);

impl FromStr for List {
    type Err = <Address as FromStr>::Err;

    fn from_str(words: &str) -> Result<Self, Self::Err> {
        words.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// A time.
#[derive(Debug)]
struct Grace(Duration);

impl FromStr for Grace {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        time(word).map(Self).map_err(|why| format!("'{word}': {why}"))
    }
}

/// A number of nodes.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Scalar")]
struct Count(u16);

impl TryFrom<Scalar> for Count {
    type Error = String;

    fn try_from(count: Scalar) -> Result<Self, String> {
        let number = if let Scalar::Number(number) = count { u16::try_from(number).ok() } else { None };
        let found = number.filter(|count| (1..=1024).contains(count));
        found.map(Self).ok_or_else(|| format!("{count} is not a number of nodes: from 1 to 1024"))
    }
}

/// The number of a node, as the name of a table.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct Number(u16);

impl TryFrom<String> for Number {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        // One spelling for each number: two tables could be of one node.
        let number = word.parse().ok().filter(|number: &u16| number.to_string() == word);
        number.map(Self).ok_or_else(|| format!("'{word}' is no number of a node: they go from 0 up"))
    }
}

/// Variables.
#[derive(Debug, Default)]
struct Environment(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Environment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
        if let Some((name, number)) = found.iter().find(|(_, value)| matches!(value, Scalar::Fraction(_))) {
            return Err(D::Error::custom(format!("{name}: write a number with a fraction, {number}, in quotes")));
        }
        let variables: BTreeMap<_, _> = found.into_iter().map(|(name, value)| (name, value.to_string())).collect();
        for (name, value) in &variables {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(D::Error::custom(format!("'{}' cannot be a variable with this value", name.escape_default())));
            }
            if let Some((_, instead)) = SET.iter().find(|(set, _)| set == name) {
                return Err(D::Error::custom(format!("{name} is set by the command; hint: {instead}")));
            }
        }
        Ok(Self(variables))
    }
}
