//! Rooms wired into running nodes: topology, source node, builder node, run control
