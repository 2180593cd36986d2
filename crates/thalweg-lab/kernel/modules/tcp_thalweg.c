// SPDX-License-Identifier: GPL-2.0-only
/* The same control that `thalweg cc load thalweg` loads into a host's kernel, built into the laboratory's. */
#include "bpf/thalweg.c"
