// Package peer finds out which program on this machine has the other end of a TCP connection. On
// Linux the kernel knows the user and the inode of the other socket, and /proc the processes that
// hold the inode. On other systems the package finds nothing.
package peer
