//! What DataFusion sees: the table provider.
