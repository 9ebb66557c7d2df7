use doorbell::atomic::AtomicValue;

#[derive(Clone, Copy, AtomicValue)]
enum Color {
    Red,
    Green,
}

#[derive(Clone, Copy, AtomicValue)]
struct Both<T> {
    one: T,
    other: T,
}

fn main() {}
