"""Reports of plans of replication: what an acknowledgement costs, what a crash loses, what a fallback hides. Start at `page.body` and
`text.tables_of`."""
