//! Starts the processes.

use super::input;
use super::output::Output;
use super::{Network, RunArgs};
use crate::environment::{self as names, Address};
use crate::exit::Failure;
use crate::guard::Guard;
use crate::processes::{collect_group, in_own_group, signal_group, spelled};
use doorbell::Role;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// What is to be started.
pub struct Launch<'a> {
    pub args: &'a RunArgs,
    pub domain: &'a str,
    pub bind: Option<Vec<CpuSet>>,
    pub network: Option<Network>,
}

/// The processes, by node. Dropped, they and all that is in their groups are gone.
pub struct Nodes {
    children: Vec<Child>,
}

impl Launch<'_> {
    /// Starts all of them. If that fails for one, there are none.
    pub fn start(&self, output: &mut Output, guard: &mut Guard) -> Result<Nodes, Failure> {
        let mut nodes = Nodes { children: Vec::new() };
        for node in 0..self.args.nodes {
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
            .env(names::DOMAIN, self.domain)
            .env(names::NODE, node.to_string())
            .env(names::NODES, self.args.nodes.to_string())
            .env(names::ROLE, self.role(node).word());
        if let Some(progress) = self.args.progress {
            command.env(names::PROGRESS, progress.to_string());
        }
        if let Some(wait) = self.args.wait {
            command.env(names::WAIT, wait.to_string());
        }
        self.place(node, &mut command);
        let output = || if with_output { Stdio::piped() } else { Stdio::inherit() };
        command.stdin(stdin_of(node)).stdout(output()).stderr(output());
        in_own_group(&mut command);
        if let Some(bind) = &self.bind {
            let set = bind[usize::from(node) % bind.len()];
            // SAFETY: one system call, no allocation, no lock.
            unsafe { command.pre_exec(move || Ok(sched_setaffinity(Pid::from_raw(0), &set)?)) };
        }
        command
    }

    /// Tells a node how to reach those of other machines, and nothing else of a network.
    fn place(&self, node: u16, command: &mut Command) {
        let Some(network) = self.network else { return };
        for name in [names::LISTEN, names::CONNECT, names::SEEK] {
            command.env_remove(name);
        }
        match (network, node) {
            (Network::Listens(_), 0) => command.env(names::LISTEN, self.listen(|at| at)),
            (Network::Listens(at), _) => {
                if self.args.listen.len() > 1 {
                    command.env(names::LISTEN, self.listen(|at| (at.ip(), 0).into()));
                }
                command.env(names::CONNECT, at.to_string())
            }
            (Network::Connects(to), _) => command.env_remove(names::NODE).env(names::CONNECT, to.to_string()),
        };
        if let Some(path) = &self.args.key_file {
            command.env(names::KEY_FILE, path);
        }
    }

    /// The addresses to listen at, each changed like this.
    fn listen(&self, change: impl Fn(SocketAddr) -> SocketAddr) -> String {
        let addresses: Vec<_> = self.args.listen.iter().map(|Address(at)| change(*at).to_string()).collect();
        addresses.join(",")
    }

    /// As given; the last of those given counts for the rest.
    fn role(&self, node: u16) -> Role {
        let roles = match self.network {
            _ if !self.args.role.is_empty() => &self.args.role,
            Some(Network::Connects(_)) => &[Role::Accelerator][..],
            _ => &[Role::Host, Role::Accelerator],
        };
        roles[usize::from(node).min(roles.len() - 1)]
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

/// Node 0 has what this process has; from a terminal, of which it is not the foreground, it cannot read for itself.
fn stdin_of(node: u16) -> Stdio {
    match node {
        0 if io::stdin().is_terminal() => Stdio::piped(),
        0 => Stdio::inherit(),
        _ => Stdio::null(),
    }
}

fn group_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

impl Nodes {
    /// The groups, by node: each has the number of the process that leads it.
    pub fn groups(&self) -> Vec<Pid> {
        self.children.iter().map(group_of).collect()
    }

    /// Sends a signal to all that are in the groups of the nodes.
    pub fn signal(&self, signal: Signal) {
        self.groups().into_iter().for_each(|group| signal_group(group, signal));
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // Leaders that ended are still zombies: nobody else can have got their numbers.
        self.signal(Signal::SIGKILL);
        for child in &mut self.children {
            let _ = child.wait();
            collect_group(group_of(child));
        }
    }
}
