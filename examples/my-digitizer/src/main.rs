//! Thalweg with a laboratory's own digitizer: all of its commands, and one more kind of device in their topologies.

fn main() -> std::process::ExitCode {
    thalweg_device::register_kind::<my_digitizer::MyDigitizer>();
    thalweg::main()
}
