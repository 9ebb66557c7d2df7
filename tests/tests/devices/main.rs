//! The shared device: its steps, its ends, the network, and a storm.

mod device;
mod device_ends;
mod device_network;
mod device_storm;

doorbell_tests::roles! {
    "compute" => device::compute,
    "device: sender" => device::send_for_ever,
    "device network: receiver" => device_network::receive,
    "device storm: receiver" => device_storm::receive_all,
    "mortal" => device_storm::receive_until_death,
    "device storm: sender" => device_storm::send_until_death,
}
