//! How the operators compose into plans.
