//! Starts the processes.

use super::input;
use super::output::Output;
use super::{Network, RunArgs};
use crate::environment as names;
use crate::exit::Failure;
use crate::guard::Guard;
use crate::processes::{collect_group, group_of, in_own_group, run_on, signal_group, spelled};
use doorbell::{Address, Role};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::io::{self, IsTerminal};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The processes to start.
pub struct Launch<'a> {
    pub args: &'a RunArgs,
    pub domain: &'a str,
    pub bind: Option<&'a [usize]>,
    pub network: Option<Network>,
}

/// The processes, by node. Dropping it kills everything in their groups.
pub struct Nodes {
    children: Vec<Child>,
}

impl Launch<'_> {
    /// Starts all processes. If one fails to start, the others are ended.
    pub fn start(&self, output: &mut Output, guard: &mut Guard) -> Result<Nodes, Failure> {
        let mut nodes = Nodes { children: Vec::new() };
        for node in 0..self.args.nodes() {
            let mut command = self.command(node, output.is_wanted());
            let mut child = command.spawn().map_err(|error| self.cannot_start(&error))?;
            guard.watch(group_of(&child));
            output.follow(node, &mut child);
            if let Some(stdin) = child.stdin.take() {
                input::relay(stdin);
            }
            nodes.children.push(child);
        }
        Ok(nodes)
    }

    fn command(&self, node: u16, with_output: bool) -> Command {
        let mut command = Command::new(&self.args.command[0]);
        command
            .args(&self.args.command[1..])
            .envs(self.args.extras.variables(node))
            .env(names::DOMAIN, self.domain)
            .env(names::NODE, node.to_string())
            .env(names::NODES, self.args.nodes().to_string())
            .env(names::ROLE, self.role(node).word());
        if let Some(progress) = self.args.progress {
            command.env(names::PROGRESS, progress.to_string());
        }
        if let Some(wait) = self.args.wait {
            command.env(names::WAIT, wait.to_string());
        }
        names::pass_space(&mut command);
        self.place(node, &mut command);
        let output = || if with_output { Stdio::piped() } else { Stdio::inherit() };
        command.stdin(stdin_of(node)).stdout(output()).stderr(output());
        in_own_group(&mut command);
        if let Some(bind) = &self.bind {
            let processor = bind[usize::from(node) % bind.len()];
            // SAFETY: one system call, no allocation, no lock.
            unsafe { command.pre_exec(move || Ok(run_on(&[processor])?)) };
        }
        command
    }

    /// Sets the variables by which a node reaches the nodes of other machines, and removes all others that name such nodes.
    fn place(&self, node: u16, command: &mut Command) {
        if let Some(port) = self.args.port.given {
            command.env(names::PORT, port.to_string());
        }
        let Some(network) = &self.network else { return };
        for name in [names::LISTEN, names::CONNECT, names::SEEK] {
            command.env_remove(name);
        }
        match (network, node) {
            (Network::Listens(_), 0) => command.env(names::LISTEN, self.listen(Address::clone)),
            (Network::Listens(at), _) => {
                // A socket that is bound for the way to node 0 may be out of reach for nodes that find node 0 by another address.
                if self.args.listen.len() > 1 || at.is_wildcard() {
                    command.env(names::LISTEN, self.listen(|at| at.with_port(0)));
                }
                let at = if at.is_wildcard() { Address::from((Ipv4Addr::LOCALHOST, at.port())) } else { at.clone() };
                command.env(names::CONNECT, at.to_string())
            }
            (Network::Connects(to), _) => command.env_remove(names::NODE).env(names::CONNECT, to.to_string()),
        };
        if let Some(path) = &self.args.key_file {
            command.env(names::KEY_FILE, path);
        }
    }

    /// The addresses to listen at, each changed like this.
    fn listen(&self, change: impl Fn(&Address) -> Address) -> String {
        let addresses: Vec<_> = self.args.listen.iter().map(|at| change(at).to_string()).collect();
        addresses.join(",")
    }

    /// The role of a node: that of its table in the file, or of the list. The last one in the list counts for all further nodes.
    fn role(&self, node: u16) -> Role {
        let roles = match self.network {
            _ if !self.args.role.is_empty() => &self.args.role,
            Some(Network::Connects(_)) => &[Role::Accelerator][..],
            _ => &[Role::Host, Role::Accelerator],
        };
        self.args.extras.role(node).unwrap_or(roles[usize::from(node).min(roles.len() - 1)])
    }

    fn cannot_start(&self, error: &io::Error) -> Failure {
        let program = &self.args.command[0];
        let hint = match error.kind() {
            io::ErrorKind::NotFound if !program.to_string_lossy().contains('/') => {
                "see that it is in one of the directories of PATH"
            }
            io::ErrorKind::NotFound => "see that the file is there, and the interpreter that its first line names",
            io::ErrorKind::PermissionDenied => "see that it is a program, and that this user may execute it (`chmod +x`)",
            _ => "see the limits on processes and files (`ulimit -a`)",
        };
        Failure::usage(format!("cannot start {}: {error}", spelled(program)), hint)
    }
}

/// Node 0 has the standard input of this process. It is not the foreground process of a terminal, so this process reads a terminal for it.
fn stdin_of(node: u16) -> Stdio {
    match node {
        0 if io::stdin().is_terminal() => Stdio::piped(),
        0 => Stdio::inherit(),
        _ => Stdio::null(),
    }
}

impl Nodes {
    /// The groups, by node. Each has the number of the process that leads it.
    pub fn groups(&self) -> Vec<Pid> {
        self.children.iter().map(group_of).collect()
    }

    /// Sends a signal to all processes in the groups of the nodes.
    pub fn signal(&self, signal: Signal) {
        self.groups().into_iter().for_each(|group| signal_group(group, signal));
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // Leaders that ended are still zombies, so no other process has their numbers.
        self.signal(Signal::SIGKILL);
        for child in &mut self.children {
            let _ = child.wait();
            collect_group(group_of(child));
        }
    }
}
