//! The event builder: completeness, deadlines, credit and the ledger, without IO
