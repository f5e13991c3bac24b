package proc

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestLastWordsAreTheLineThatSaysTheReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ tail, want string }{
		"nothing":           {"", ""},
		"no telling word":   {"first line\nsecond line", "second line"},
		"no letters at all": {"{\n}", "}"},
		"an error before the usage": {
			"Error: the token is missing\nUsage: server [options]\n  --token  your token", "Error: the token is missing",
		},
		"docker without a daemon": {
			"docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n\nRun 'docker run --help' for more information",
			"docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
		},
		"node without a module": {`node:internal/modules/cjs/loader:1210
  throw err;
  ^

Error: Cannot find module 'nope'
Require stack:
- /srv/[eval]
    at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)
    at Module._load (node:internal/modules/cjs/loader:1038:27) {
  code: 'MODULE_NOT_FOUND',
  requireStack: [ '/srv/[eval]' ]
}

Node.js v20.20.2`, "Error: Cannot find module 'nope'"},
		"node with a mistake": {`file:///srv/a.mjs:2


SyntaxError: Unexpected end of input
    at compileSourceTextModule (node:internal/modules/esm/utils:346:16)
    at async ModuleJob._link (node:internal/modules/esm/module_job:148:19)

Node.js v20.20.2`, "SyntaxError: Unexpected end of input"},
		"node throws a string": {
			"node:internal/process/esm_loader:40\n      internalBinding('errors').triggerUncaughtException(\n                                ^\nno settings\n(Use `node --trace-uncaught ...` to show where the exception was thrown)\n\nNode.js v20.20.2",
			"no settings",
		},
		"mcp-remote": {`[15989] Using transport strategy: http-first
[15989] Connection error: TypeError: fetch failed
    at fetch (/srv/node_modules/undici/index.js:155:10) {
  [cause]: Error: connect ECONNREFUSED 127.0.0.1:3333
      at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1611:16) {
    errno: -111,
    code: 'ECONNREFUSED',
    syscall: 'connect',
    address: '127.0.0.1',
    port: 3333
  }
}
[15989] Fatal error: TypeError: fetch failed
    at fetch (/srv/node_modules/undici/index.js:155:10) {
  [cause]: Error: connect ECONNREFUSED 127.0.0.1:3333
      at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1611:16) {
    errno: -111,
    code: 'ECONNREFUSED',
    syscall: 'connect',
    address: '127.0.0.1',
    port: 3333
  }
}`, "[15989] Fatal error: TypeError: fetch failed (cause: Error: connect ECONNREFUSED 127.0.0.1:3333)"},
		"python without a module": {`Traceback (most recent call last):
  File "/srv/errors.py", line 1, in <module>
    import nope
ModuleNotFoundError: No module named 'nope'`, "ModuleNotFoundError: No module named 'nope'"},
		"an exception without a telling name": {`Traceback (most recent call last):
  File "/srv/main.py", line 9, in <module>
    raise Refused("the upload failed")
          ^^^^^^^
main.Refused: no key`, "main.Refused: no key"},
		"pydantic": {`Traceback (most recent call last):
  File "/srv/main.py", line 9, in <module>
    Settings()
pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings
api_key
  Field required [type=missing, input_value={}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.11/v/missing`, "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings"},
		"a group of exceptions": {`  + Exception Group Traceback (most recent call last):
  |   File "/srv/main.py", line 6, in <module>
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/main.py", line 5, in h
    |     raise ConnectionError("no route")
    | ConnectionError: no route
    +------------------------------------`, "ConnectionError: no route"},
		"npm without a package": {
			`npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/@nope%2fnope
npm error 404
npm error 404  The requested resource '@nope/nope@*' could not be found or you do not have permission to access it.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm error A complete log of this run can be found in: /home/ann/.npm/_logs/2026-11-27T06_36_57_152Z-debug-0.log`,
			"npm error 404  The requested resource '@nope/nope@*' could not be found or you do not have permission to access it.",
		},
		"npm with news": {
			"npm error could not determine executable to run\nnpm notice\nnpm notice New major version of npm available! 10.8.2 -> 11.6.2",
			"npm error could not determine executable to run",
		},
		"uv": {
			`error: No solution found when resolving tool dependencies
  cause: Because nope was not found in the package registry and you require nope, we can conclude that your requirements are unsatisfiable.`,
			"cause: Because nope was not found in the package registry and you require nope, we can conclude that your requirements are unsatisfiable.",
		},
		"uv behind a proxy": {
			`error: Failed to fetch: https://index.example/simple/nope/
  cause: error sending request for url (https://index.example/simple/nope/)
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer

hint: Consider enabling use of system TLS certificates with the --system-certs option`,
			"cause: invalid peer certificate: UnknownIssuer (hint: Consider enabling use of system TLS certificates with the --system-certs option)",
		},
		"causes of anyhow": {"Error: cannot start\n\nCaused by:\n    0: cannot read the settings\n    1: No such file or directory (os error 2)", "1: No such file or directory (os error 2)"},
		"causes of Java": {`Exception in thread "main" java.lang.RuntimeException: cannot start
	at Main.main(Main.java:3)
Caused by: java.net.UnknownHostException: db
	at java.base/java.net.Socket.connect(Socket.java:1)
	... 1 more`, "Caused by: java.net.UnknownHostException: db"},
		"go": {"panic: no settings\n\ngoroutine 1 [running]:\nmain.main()\n\t/srv/main.go:4 +0x25\nexit status 2", "panic: no settings"},
	} {
		commontest.EqualIn(t, name, c.want, LastWords(c.tail))
	}
}
