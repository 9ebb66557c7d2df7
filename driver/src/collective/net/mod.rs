//! Collectives between members that share no memory: who sends what to whom, and how it gets there.
