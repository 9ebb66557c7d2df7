//! Puts and gets in further worlds of nodes that share no memory.

use super::regions;
use doorbell::{Progress, Wait};
use doorbell_tests::world::Ground;

macro_rules! worlds {
    ($($world:ident: $ground:ident, $progress:ident, $wait:ident;)+) => {
        $(mod $world {
            use super::*;
            behaviours!($ground, $progress, $wait:
                puts_and_gets_of_every_length_arrive
                what_was_put_before_a_message_is_there
                a_flag_that_was_put_after_a_flush_follows_its_data
                keys_reach_no_further_than_they_say
                keys_that_do_not_suffice_are_refused_by_name
                a_withdrawn_region_has_stale_keys
                a_node_that_is_gone_has_stale_keys
                a_node_that_left_makes_and_uses_no_regions
                a_node_has_many_regions
                regions_are_used_from_within_a_reader
                threads_put_and_get_both_ways_at_once
                more_threads_put_than_a_node_keeps_answers_for
                a_counter_says_what_was_put
                messages_that_nobody_takes_do_not_hold_up_puts
                a_long_put_or_get_ends_with_its_node
                a_long_put_or_get_ends_when_its_own_node_leaves);
        })+
    };
}

macro_rules! behaviours {
    ($ground:ident, $progress:ident, $wait:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            fn $behaviour() {
                crate::run(regions::$behaviour, Ground::$ground, Progress::$progress, Wait::$wait);
            }
        )+
    };
}

worlds! {
    key_inline: UdpKey, Inline, Park;
    key_poller: UdpKey, Poller, Park;
    mixed_inline: Mixed, Inline, Auto;
}
