//! Memory that a device, a NIC and a disk can share
