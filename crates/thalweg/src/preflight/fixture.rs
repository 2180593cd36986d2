//! A laboratory for the tests: two builders and two sources on one machine.

use thalweg_node::Topology;

pub(crate) fn parse_topology(text: &str) -> Topology {
    toml::from_str(text).unwrap()
}

pub(crate) const LAB: &str = r#"
    [run]
    directory = "/tmp"
    number = 987654321
    duration = "10s"

    [[builder]]
    name = "even"
    listen = ["tcp:127.0.0.1:0", "shm:/tmp/even.sock"]
    cpu = 1
    [[builder]]
    name = "odd"
    listen = ["tcp:127.0.0.1:0", "shm:/tmp/odd.sock"]

    [[source]]
    name = "adc"
    id = "1.0"
    device = { kind = "model-adc", size = "1MiB" }
    rate = 100.0
    congestion = "reno"
    [[source]]
    name = "camera"
    id = "1.1"
    link = "shm"
    device = { kind = "model-adc", size = "4MiB" }
    rate = 100.0
    slots = 4
    "#;
