// Package failover makes servers of replicated backends fail under load, and counts the locks that
// are forgotten. Its tests need Linux.
package failover
