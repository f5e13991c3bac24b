// Package peer tells which program of this machine has the other end of a TCP connection.
// On Linux the kernel names the user and the inode of that socket, and /proc the processes
// that hold the inode. Elsewhere the package knows nothing.
package peer
