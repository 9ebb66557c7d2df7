//! The numbers of operators and kinds of values, as nodes say them to each other.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)+) => {
        /// The operator of an update.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum OpCode {
            $($(#[$doc])* $name = $number,)+
        }

        impl OpCode {
            pub(super) fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Only read the value.
    Load = 0,
    /// Replace the value by the operand.
    Set = 1,
    /// Replace the value by the operand if its bytes equal `expected`.
    CompareSwap = 2,
    /// `+=`
    Add = 3,
    /// `-=`
    Sub = 4,
    /// `*=`
    Mul = 5,
    /// `/=`
    Div = 6,
    /// `%=`
    Rem = 7,
    /// `&=`
    And = 8,
    /// `|=`
    Or = 9,
    /// `^=`
    Xor = 10,
    /// `<<=`
    Shl = 11,
    /// `>>=`
    Shr = 12,
    /// The greater of value and operand.
    Max = 13,
    /// The smaller of value and operand.
    Min = 14,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// An unsigned integer.
    Unsigned = 0,
    /// A signed integer.
    Signed = 1,
    /// A floating-point number.
    Float = 2,
    /// A truth value; 0 is false.
    Bool = 3,
    /// Plain data in a word.
    Bytes = 4,
}
