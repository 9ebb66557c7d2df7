//! The screen of `doorbell top`.

use super::watch::{COLUMNS, Column, Look, Watch};
use crate::exit::Failure;
use crate::links_shown;
use crate::nodes::{RECORD_COLUMNS, record_cells};
use crate::processes::EndRequest;
use crate::text::{Table as Lines, counted};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::Frame;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState};
use signal_hook::consts::SIGHUP;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long it may take until a signal is noticed.
const NOTICE: Duration = Duration::from_millis(100);
/// Lines for the last records of a node.
const RECORD_LINES: u16 = 9;
/// Lines for links and modes.
const MODE_LINES: u16 = 8;

/// Draws until a key or a signal ends it. Afterwards the terminal is as before, also after a panic.
pub fn show(watch: &mut Watch, interval: Duration) -> Result<(), Failure> {
    let request = EndRequest::listen()?;
    // If the terminal is gone, the signal says so.
    let fault = |error: io::Error| match request.check() {
        Ok(()) => Failure::failed(format!("the terminal failed: {error}"), "`doorbell top --once` needs none"),
        Err(interrupted) => interrupted,
    };
    let _restored = Restored;
    // Not dropped: dropping it writes to the terminal, and panics if that is gone.
    let mut terminal = ManuallyDrop::new(ratatui::try_init().map_err(fault)?);
    let mut screen = Screen::new(interval);
    let mut due = Instant::now();
    loop {
        if !screen.paused && Instant::now() >= due {
            screen.look = watch.look()?;
            screen.arrange();
            due = Instant::now() + interval;
        }
        terminal.draw(|frame| screen.draw(frame)).map_err(fault)?;
        let wait = if screen.paused { NOTICE } else { NOTICE.min(due.saturating_duration_since(Instant::now())) };
        match input(wait).map_err(fault)? {
            Input::Nothing => {}
            Input::Gone => return Err(Failure::interrupted(SIGHUP)),
            Input::Keys => {
                while event::poll(Duration::ZERO).map_err(fault)? {
                    match event::read().map_err(fault)? {
                        Event::Key(key) if key.kind != KeyEventKind::Release && screen.key(key) == Next::Quit => return Ok(()),
                        _ => {}
                    }
                }
            }
        }
        request.check()?;
    }
}

enum Input {
    Nothing,
    Keys,
    /// The terminal is closed.
    Gone,
}

/// Waits for keys. Asks the kernel first, because `event::poll` never returns if the terminal is gone.
fn input(wait: Duration) -> io::Result<Input> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO)) {
        Ok(0) | Err(Errno::EINTR) => Ok(Input::Nothing),
        Ok(_) if fds[0].revents() == Some(PollFlags::POLLIN) => Ok(Input::Keys),
        Ok(_) => Ok(Input::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Restores the terminal when it is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // A terminal that cannot be restored is gone.
        let _ = ratatui::try_restore();
        let _ = execute!(io::stdout(), Show);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Quit,
    GoOn,
}

struct Screen {
    look: Look,
    interval: Duration,
    paused: bool,
    sort: usize,
    round: bool,
    /// Whether links and modes are shown.
    modes: bool,
    chosen: TableState,
}

impl Screen {
    fn new(interval: Duration) -> Self {
        let chosen = TableState::default().with_selected(0);
        Self { look: Look::default(), interval, paused: false, sort: 0, round: false, modes: true, chosen }
    }

    fn arrange(&mut self) {
        self.look.sort(self.sort, self.round);
        if self.chosen.selected().is_none() {
            self.chosen.select(Some(0));
        }
    }

    fn key(&mut self, key: KeyEvent) -> Next {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort = (self.sort + 1) % COLUMNS.len(),
            KeyCode::Char('S') => self.sort = (self.sort + COLUMNS.len() - 1) % COLUMNS.len(),
            KeyCode::Char('m') => self.modes = !self.modes,
            KeyCode::Char('r') => self.round = !self.round,
            KeyCode::Down | KeyCode::Char('j') => self.chosen.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.chosen.select_previous(),
            _ => {}
        }
        self.arrange();
        Next::GoOn
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [title, table, modes, below, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(if self.modes { MODE_LINES } else { 0 }),
            Constraint::Length(RECORD_LINES),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(), title);
        let rows = self.look.rows.iter().map(|row| {
            let style = match row.state {
                "dead" => Style::new().fg(Color::Red),
                "stopped" => Style::new().fg(Color::Yellow),
                _ => Style::new(),
            };
            Row::new(COLUMNS.iter().map(|Column(name, of, _)| cell(of(row), name))).style(style)
        });
        let header = COLUMNS.iter().enumerate().map(|(at, Column(name, ..))| {
            let sorted = if at == self.sort { Modifier::BOLD | Modifier::REVERSED } else { Modifier::BOLD };
            cell(name.trim_start_matches('>').to_owned(), name).style(Style::new().add_modifier(sorted))
        });
        let widget = Table::new(rows, self.widths()).header(Row::new(header)).column_spacing(2);
        frame.render_stateful_widget(
            widget.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED)),
            table,
            &mut self.chosen,
        );
        if self.modes {
            self.draw_modes(frame, modes);
        }
        frame.render_widget(self.records(), below);
        frame.render_widget(Line::styled("q quit  p pause  s sort  r turn round  m modes  ↑↓ choose", Modifier::DIM), keys);
    }

    /// The widths of the columns: as wide as their widest cells.
    fn widths(&self) -> Vec<Constraint> {
        let width = |Column(name, cell, _): &Column| {
            let cells = self.look.rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0);
            Constraint::Length(cells.max(name.trim_start_matches('>').len()) as u16)
        };
        COLUMNS.iter().map(width).collect()
    }

    fn title(&self) -> Line<'static> {
        let dead = self.look.rows.iter().filter(|row| row.state == "dead").count();
        let mut text = format!(" {}, every {:?}", counted(self.look.rows.len(), "node"), self.interval);
        if dead > 0 {
            text += &format!(", {dead} dead");
        }
        let mut spans = vec![Span::styled("doorbell top", Modifier::BOLD), Span::raw(text)];
        if self.paused {
            spans.push(Span::styled("  paused", Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD)));
        }
        Line::from(spans)
    }

    /// Draws the links of the chosen node's domain, and the modes of that node's messages.
    fn draw_modes(&self, frame: &mut Frame<'_>, area: Rect) {
        let chosen = self.chosen();
        let mut domains = self.look.domains();
        domains.retain(|domain| chosen.is_some_and(|row| row.domain == domain.name));
        let title = match &domains[..] {
            [domain] => format!(" MODES of '{}': {} ", domain.name, links_shown::whole(&domain.nodes)),
            _ => " MODES ".into(),
        };
        let block = Block::new().borders(Borders::TOP).title(title);
        let [links, node] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(block.inner(area));
        frame.render_widget(block, area);
        let text = |lines: Vec<String>| Paragraph::new(lines.into_iter().map(Line::from).collect::<Vec<_>>());
        let about = chosen.and_then(|row| row.modes.as_ref()).map(links_shown::about).unwrap_or_default();
        frame.render_widget(text(links_shown::links(&domains)), links);
        frame.render_widget(text(about), node);
    }

    fn chosen(&self) -> Option<&super::watch::Row> {
        self.look.rows.get(self.chosen.selected()?)
    }

    fn records(&self) -> Paragraph<'static> {
        let Some(row) = self.chosen() else { return Paragraph::new("no domains of this user") };
        let keys = row.about_keys();
        let keys = if keys.is_empty() { keys } else { format!("; it {keys}") };
        let title = format!(" node {} of '{}': what it did last{keys} ", row.node.id, row.domain);
        let records = row.node.board.as_ref().map(|board| board.board().records()).unwrap_or_default();
        let mut table = Lines::new(&RECORD_COLUMNS);
        // Two lines are for the rule and the names.
        let last = records.len().saturating_sub(usize::from(RECORD_LINES) - 2);
        records[last..].iter().for_each(|recorded| table.row(record_cells(recorded)));
        let mut lines: Vec<Line<'static>> = table.lines().into_iter().map(Line::from).collect();
        lines.extend(self.look.remarks.get(&row.domain).cloned().map(Line::from));
        Paragraph::new(lines).block(Block::new().borders(Borders::TOP).title(title))
    }
}

fn cell(text: String, name: &str) -> Cell<'static> {
    let alignment = if name.starts_with('>') { Alignment::Right } else { Alignment::Left };
    Cell::from(Line::from(text).alignment(alignment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn press(screen: &mut Screen, code: KeyCode) -> Next {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn an_empty_screen_of_any_size_is_drawn() {
        let mut screen = Screen::new(Duration::from_secs(1));
        let text = drawn(&mut screen, 140, 24);
        assert!(text.contains("doorbell top 0 nodes, every 1s") && text.contains("PARKS/S") && text.contains("q quit"), "{text}");
        for (width, height) in [(1, 1), (20, 3), (80, 5), (80, 12)] {
            drawn(&mut screen, width, height);
        }
        assert!(text.contains("MODES"), "{text}");
        press(&mut screen, KeyCode::Char('m'));
        assert!(!drawn(&mut screen, 140, 24).contains("MODES"));
    }

    #[test]
    fn keys_do_what_the_last_line_says() {
        let mut screen = Screen::new(Duration::from_secs(1));
        assert_eq!(press(&mut screen, KeyCode::Char('p')), Next::GoOn);
        assert!(screen.paused && drawn(&mut screen, 100, 20).contains("paused"));
        press(&mut screen, KeyCode::Char(' '));
        assert!(!screen.paused);
        for _ in 0..COLUMNS.len() {
            press(&mut screen, KeyCode::Char('s'));
        }
        assert_eq!(screen.sort, 0, "round it goes");
        press(&mut screen, KeyCode::Up);
        assert_eq!(screen.chosen.selected(), Some(0));
        press(&mut screen, KeyCode::Down);
        assert_eq!(screen.chosen.selected(), Some(1));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Next::Quit);
        assert_eq!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Next::Quit);
    }
}
