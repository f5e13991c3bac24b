// Package provision prepares what a stdio server needs before its process starts: a workspace with
// its program, and the dependencies of that program. If the command names a package instead of a
// program (npx, uvx), it also installs the package. The result is a [Launch]: the command that is
// left to execute. That command installs nothing, so no installer writes to the server's stdout.
//
// The package starts no server, sets no limits and knows no sessions: it knows a process only by
// its name.
//
// # Workspace
//
// If there is a host path (Server.HostPath: a folder with the program), the workspace is
// <base>/.mcp/<process>/workspace, a copy of the host path that is refreshed in place. What was
// changed or removed in the host path is changed or removed in the copy. A file that a process has
// changed or removed stays so until the same file changes in the host path. A change that was saved
// and restored while the box slept stays for good. Files that the process made itself stay, and so
// do .venv, .cache, .tmp and node_modules. A writable host path is itself the workspace, without a
// copy. The copy is written through [os.Root], because the process that works there may put links
// in the way.
//
// # Installs
//
// An install has its own folder in the cache, named by a digest of its inputs. It is built in a
// new subfolder, and is valid once the file "ready" names that subfolder. The next start removes
// what a crashed start has left. One start builds at a time, under flock(2). The kernel releases
// that lock when its holder dies.
//
// [Tidy] removes installs that were not used for a long time, or that exceed the limit of the
// cache. A Provisioner holds a lock on each install that it has returned, until it is closed or
// its program dies. Tidy does not remove an install with such a lock.
//
// The lock of an install lists its packages with their hashes. This lock is a file in the folder
// "locks" of the cache, or in Config.Locks, named by the request. The first start makes the lock,
// which stays until an operator removes it; [Tidy] does not. Another machine with the same locks
// gets the same bytes. Locks of Python packages are for one platform.
//
// With Config.Kept, which stores installs outside of this machine, the cache is empty at first.
// Installs are named by the request instead of the lock, so that they are found without resolving
// versions. An install is packed before its program has run with arguments or variables, and only
// if none of its files contains a credential of the installers. A stored install that is damaged,
// or does not fit, is ignored.
//
// Installers run in their own process group, which is killed when the start is given up. Their
// environment has the variables for proxies, certificates and the settings of pip, uv and npm, and
// no others of the runner or the server. Installers can use the network even if the server cannot.
// npm and uv execute no code of the packages that they install, with two exceptions:
//
//   - Server.Scripts lets packages run their code.
//   - A Python project in the host path is always built, with the packages that its build needs.
//
// Such code runs in the sandbox that Config.Confine makes.
package provision
