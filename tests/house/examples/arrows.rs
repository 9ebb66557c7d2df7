//! Prints the arrows between files of a source folder that lie in circles.
use doorbell_house::{Source, circles};
use std::path::Path;
fn main() {
    let folder = std::env::args().nth(1).unwrap();
    let source = Source::read(Path::new(&folder)).unwrap();
    let arrows = source.arrows();
    for circle in circles(&arrows) {
        println!("== {circle:?}");
        for arrow in &arrows {
            if circle.contains(&arrow.from) && circle.contains(&arrow.to) && arrow.from != arrow.to {
                println!("{} -> {}: {}", arrow.from, arrow.to, arrow.name);
            }
        }
    }
}
