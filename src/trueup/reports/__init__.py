"""Results as pages people read. This room only reads results; nothing below it knows of it."""
