use doorbell::atomic;
use doorbell::atomic::{AtomicCell, AtomicValue};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, AtomicValue)]
#[repr(C)]
struct Point {
    x: i32,
    y: i32,
}

impl std::ops::Add for Point {
    type Output = Point;

    fn add(self, by: Point) -> Point {
        Point { x: self.x + by.x, y: self.y + by.y }
    }
}

struct Holder {
    point: AtomicCell<Point>,
}

fn main() {
    let holder = Holder { point: AtomicCell::new(Point { x: 1, y: 2 }) };
    atomic! { holder.point += Point { x: 2, y: 2 } };
    atomic! { holder.point = Point { x: holder.point.y, y: holder.point.x } };
    let point = atomic! { holder.point };
    assert_eq!((point.x, point.y), (4, 3));
}
