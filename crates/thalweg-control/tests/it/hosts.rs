//! Experiments of many hosts: network namespaces with names of their own, and the programs of other projects that start
//! nodes on them.

mod site;
mod slurm;
mod ssh;

use site::Site;
