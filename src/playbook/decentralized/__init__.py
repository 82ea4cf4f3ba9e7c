"""Training that talks less: neighbours instead of everybody, now and then instead of always, few bits instead of all."""
