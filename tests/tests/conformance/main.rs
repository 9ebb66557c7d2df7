//! One suite for every fabric and every policy: the behaviour that a program may rely on.
//!
//! Each behaviour is a function over a [`World`]. The macro at the end makes every world and in it one test for each
//! behaviour.

mod circles;
mod descriptors;
mod devices;
mod flow;
mod heirs;
mod loans;
mod lock_waits;
mod locks;
mod matching;
mod members;
mod messages;
mod regions;
mod remote_regions;
mod repeated;
mod requests;
mod series;
mod taken_back;
mod threads;
mod transfers;

use doorbell::{Progress, Wait};
use doorbell_tests::world::{Ground, World};

/// Runs a behaviour in a new world. Thousands of tests call this, so that each of them compiles to one call.
pub(crate) fn run(behaviour: fn(&World), ground: Ground, progress: Progress, wait: Wait) {
    behaviour(&World::new(ground, progress, wait));
}

macro_rules! suite {
    ($($room:ident: $($behaviour:ident)+;)+) => {
        /// Runs every behaviour in every world.
        macro_rules! in_world {
            ($world:ident: $ground:ident, $progress:ident, $wait:ident) => {
                in_world!($world: $ground, $progress, $wait, cfg(all()));
            };
            ($world:ident: $ground:ident, $progress:ident, $wait:ident, $further:meta) => {
                mod $world {
                    use super::*;
                    $($(
                        #[test]
                        #[$further]
                        fn $behaviour() {
                            run($room::$behaviour, Ground::$ground, Progress::$progress, Wait::$wait);
                        }
                    )+)+
                }
            };
        }
    };
}

suite! {
    descriptors:
        injected_puts_of_every_length_arrive_and_are_counted
        packets_of_descriptors_arrive_in_order
        a_remote_get_has_its_target_put_to_any_node
        a_descriptor_that_fails_leaves_the_others_alone
        descriptors_for_a_node_that_is_gone_fail_by_name;
    messages:
        every_length_arrives_intact
        messages_of_several_mib_arrive_intact
        a_message_does_not_overtake_the_one_before_it
        order_is_kept_for_each_sender_and_priority
        urgent_messages_do_not_wait_behind_others
        pieces_become_one_message
        a_message_is_read_in_place
        a_reader_that_panics_does_not_harm_the_node
        calls_from_within_a_reader_are_told_apart
        a_truncated_message_is_in_the_error
        a_node_sends_to_itself
        probing_takes_nothing
        parameters_out_of_range_are_refused
        figures_agree_with_what_happened;
    series:
        a_series_arrives_whole_and_in_order
        a_series_is_received_in_any_way
        a_series_of_one_tag_leaves_the_others
        a_series_without_room_says_how_far_it_came
        chunks_arrive_as_messages_of_their_own
        a_series_whose_reader_panics_goes_on
        a_conversation_reads_one_message_at_a_time
        calls_from_within_a_series_are_told_apart;
    matching:
        tags_and_masks_select
        sources_select
        unexpected_messages_wait_in_order
        receives_match_in_the_order_in_which_they_were_begun
        a_message_that_was_given_up_leaves_the_receives_in_order
        a_message_that_was_given_up_does_not_keep_a_receive
        try_and_deadline_forms_do_not_wait;
    requests:
        requests_end_by_testing
        requests_end_by_waiting
        requests_are_futures
        a_request_that_is_not_ready_comes_back
        a_receive_is_cancelled_before_its_message
        a_receive_is_cancelled_in_the_middle_of_its_message
        a_receive_is_cancelled_after_its_message
        a_receive_that_is_dropped_gives_its_message_to_the_next
        a_send_is_cancelled_before_it_is_in_the_lane
        a_send_is_cancelled_after_it_is_in_the_lane
        dropping_a_request_cancels_it
        forgetting_a_request_is_sound
        too_many_queued_sends_are_refused
        requests_advance_while_nobody_waits;
    flow:
        full_is_an_ordinary_result
        a_full_pool_holds_senders_back_and_lets_them_go_on
        a_send_waits_for_room
        two_nodes_that_send_before_they_receive_get_full
        two_nodes_that_send_before_they_receive_finish_if_there_is_room
        one_message_larger_than_the_pools_of_two_nodes
        three_in_a_ring_that_send_before_they_receive_get_full
        a_flood_to_oneself_gets_full
        a_message_larger_than_the_pool_is_received_in_every_form
        a_busy_lane_does_not_keep_others_waiting
        a_transfer_that_ran_out_of_time_is_not_delivered
        a_send_that_ran_out_of_time_is_not_delivered;
    threads:
        threads_share_a_node
        threads_have_peers_to_one_target
        threads_wait_for_different_things_at_once
        readers_and_receivers_share_a_node;
    members:
        nodes_wait_for_each_other
        comings_and_goings_are_told
        what_was_sent_before_leaving_is_delivered_first
        what_was_sent_before_dying_is_delivered_first
        what_a_short_life_sent_is_delivered
        pending_operations_end_when_their_node_is_gone
        a_death_is_noticed_under_traffic
        a_peer_leads_to_one_life
        what_is_queued_does_not_reach_the_next_life
        a_node_is_known_as_soon_as_it_has_joined
        ids_are_used_again
        the_dead_are_no_members
        a_node_that_left_is_closed
        leaving_from_within_a_reader_does_not_hang
        leaving_ends_what_waits
        nodes_that_are_not_there_have_names;
    regions:
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
        a_long_put_or_get_ends_when_its_own_node_leaves;
    transfers:
        large_messages_arrive_intact
        large_messages_arrive_intact_from_the_high_end
        whoever_copies_large_messages_arrive
        a_large_message_in_a_short_buffer_is_in_the_error
        order_is_kept_among_long_and_short_messages
        several_threads_move_large_messages_at_once
        a_node_moves_a_large_message_to_itself
        counters_reach_zero_once_whatever_the_delays
        an_answered_transfer_holds_up_its_own_priority_only;
    taken_back:
        a_large_message_that_does_not_come_holds_up_nobody_else
        a_large_send_is_taken_back_in_the_middle
        a_large_send_is_taken_back_beside_other_threads
        memory_of_a_send_that_was_taken_back_is_not_read
        a_slot_that_is_used_again_does_not_harm_its_new_message
        a_refused_message_that_was_given_up_harms_no_other
        a_large_receive_that_is_taken_back_loses_nothing
        large_requests_end_within_a_reader
        a_forgotten_large_send_is_sound
        the_origin_of_a_large_message_leaves
        the_target_of_a_large_message_leaves
        the_origin_of_a_large_message_dies
        the_target_of_a_large_message_dies;
    loans:
        loans_of_every_length_arrive_intact
        values_and_slices_are_lent_as_what_they_are
        values_of_every_alignment_are_lent_aligned
        several_read_one_loan
        what_was_given_back_is_lent_again
        a_loan_waits_in_the_pool_and_holds_its_memory
        every_receive_takes_a_loan
        a_limit_is_reached_and_relieved
        a_reader_has_so_many_loans_and_no_more
        a_reader_that_is_gone_holds_nothing
        what_was_taken_outlives_its_owner
        forgetting_a_loan_is_sound
        loans_are_used_from_within_a_reader;
    locks:
        a_key_has_one_owner
        keys_have_names
        a_value_is_set_if_it_is_as_expected
        a_program_gives_numbers_of_its_own
        two_never_own_a_key
        a_wait_for_a_key_ends_at_its_deadline
        a_key_is_not_locked_twice
        the_module_locks_a_key_for_everybody
        the_module_waits_for_who_is_in
        a_key_is_destroyed_when_nobody_uses_it
        who_waits_for_a_key_is_told_that_it_was_destroyed
        who_gives_up_waiting_holds_up_nobody
        everybody_gets_a_turn
        a_panic_gives_its_keys_up
        keys_are_locked_within_a_reader
        a_node_that_left_has_no_keys;
    circles:
        a_circle_of_two_is_told_to_who_closed_it
        a_circle_of_three_is_told_to_who_closed_it;
    heirs:
        the_next_owner_is_told_who_died
        the_next_owner_is_told_who_left;
    lock_waits:
        a_key_goes_to_who_waits_as_soon_as_it_is_free;
    devices:
        what_is_sent_to_a_thread_reaches_that_thread
        a_message_that_does_not_fit_is_not_lost
        a_sender_waits_for_room_in_a_device
        a_device_that_is_not_there_is_told
        what_was_sent_before_a_thread_came_is_there;
}

in_world!(posix_inline: Posix, Inline, Auto);
in_world!(posix_inline_park: Posix, Inline, Park, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(posix_poller: Posix, Poller, Auto);
in_world!(posix_poller_yield: Posix, Poller, Yield, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(posix_adaptive: Posix, Adaptive, Auto);
in_world!(posix_adaptive_park: Posix, Adaptive, Park, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(heap_inline_spin: Heap, Inline, Spin);
in_world!(heap_inline_yield: Heap, Inline, Yield, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(heap_poller_park: Heap, Poller, Park, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(heap_adaptive: Heap, Adaptive, Auto);
in_world!(udp_inline: Udp, Inline, Auto);
in_world!(udp_poller: Udp, Poller, Auto);
in_world!(udp_adaptive: Udp, Adaptive, Auto);
in_world!(udp_adaptive_park: Udp, Adaptive, Park, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(udp_plain_port: UdpPlain, Adaptive, Auto);
in_world!(udp_uring: UdpUring, Adaptive, Auto);
in_world!(udp_uring_inline: UdpUring, Inline, Park, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(udp_uring_poller: UdpUring, Poller, Auto, ignore = "a further wait policy: `.ci/run` runs it");
in_world!(udp_key: UdpKey, Adaptive, Auto);
in_world!(mixed_adaptive: Mixed, Adaptive, Auto);
in_world!(mixed_poller: Mixed, Poller, Auto);
in_world!(lots_adaptive: Lots, Adaptive, Auto);
in_world!(lots_inline: Lots, Inline, Auto);
in_world!(lots_poller: Lots, Poller, Auto);
in_world!(faulty_inline: Faulty, Inline, Auto);
in_world!(faulty_poller: Faulty, Poller, Auto);
in_world!(faulty_adaptive: Faulty, Adaptive, Auto);
in_world!(faulty_adaptive_yield: Faulty, Adaptive, Yield, ignore = "a further wait policy: `.ci/run` runs it");
