package redislock

// EntryID, KeysOf and PermitKeys make what entries in queues consist of.
func EntryID(n *Namespace, number uint64, k Keys) string { return n.entryID(number, k) }

func KeysOf(n *Namespace, id string) (Keys, bool) { return n.keysOf(id) }

func PermitKeys(n *Namespace, name string, count int) Keys { return n.permits(name, count) }
