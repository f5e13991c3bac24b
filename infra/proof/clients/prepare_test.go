//go:build clients

package clients

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// prepareTypeScript installs the SDK that the folder name pins, and returns the command of
// a program for it. It copies the program and its files for this SDK next to it, because
// Node looks for packages beside the script.
func prepareTypeScript(t *testing.T, name, program string) []string {
	t.Helper()
	dir := nodeModules(t, name)
	programtest.Copy(t, filepath.Join(name, "sdk.mjs"), filepath.Join(dir, "sdk.mjs"))
	programtest.Copy(t, filepath.Join("ts", program), filepath.Join(dir, program))
	return []string{programtest.Tool(t, "node", programtest.NodeHelp), filepath.Join(dir, program)}
}

// prepareTypeScriptClient is prepareTypeScript for the program with all checks, over a
// transport.
func prepareTypeScriptClient(t *testing.T, name, transport string) []string {
	t.Helper()
	command := prepareTypeScript(t, name, "client.mjs")
	if transport == webSocket && nodeMajor(t, command[0]) < 22 {
		return []string{command[0], "--experimental-websocket", "--no-warnings", command[1]}
	}
	return command
}

// nodeMajor reads "v20.20.2".
func nodeMajor(t *testing.T, node string) int {
	t.Helper()
	version := string(programtest.Run(t, ".", programtest.NodeHelp, 0, node, "--version"))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		t.Fatalf("node calls its version %q", version)
	}
	return n
}

func preparePython(t *testing.T, requirements, program string) []string {
	t.Helper()
	python := programtest.Python(t, filepath.Join("clients", requirements), filepath.Join("py", requirements))
	return []string{python, filepath.Join("py", program)}
}

func prepareGo(t *testing.T) []string {
	t.Helper()
	return []string{programtest.Build(t, filepath.Join("clients", "gosdk"), ".", "./gosdk")}
}

// everything returns the script of the pinned reference server.
func everything(t *testing.T) string {
	t.Helper()
	return filepath.Join(nodeModules(t, "everything"),
		"node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
}

// nodeModules installs the packages that name/package-lock.json pins and returns the
// folder that contains node_modules.
func nodeModules(t *testing.T, name string) string {
	t.Helper()
	node := programtest.Tool(t, "node", programtest.NodeHelp)
	return programtest.NodeModules(t, filepath.Join("clients", name), name, programtest.Run(t, ".", programtest.NodeHelp, 0, node, "--version"))
}

const javaHelp = "Maven and a JDK of 17 or newer are needed"

// prepareJavaRelease fetches a release of the Java SDK with what it needs, and compiles the
// program for it.
func prepareJavaRelease(t *testing.T, version string) []string {
	t.Helper()
	from := filepath.Join("releases", "java")
	key := slices.Concat(programtest.Read(t, filepath.Join(from, "pom.xml")), programtest.Read(t, filepath.Join(from, "Client.java")))
	dir := programtest.Installed(t, filepath.Join("clients", "java-"+version), key, func(dir string) {
		lib := filepath.Join(dir, "lib")
		programtest.Run(t, from, "is Maven Central within reach?", 0, programtest.Tool(t, "mvn", javaHelp), "-B", "-q", "-Dsdk.version="+version,
			"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies", "-DoutputDirectory="+lib)
		programtest.Run(t, from, "does the program fit the release?", 0, programtest.Tool(t, "javac", javaHelp), "-d", dir, "-cp", filepath.Join(lib, "*"), "Client.java")
	})
	return runJava(t, "Client", dir, filepath.Join(dir, "lib", "*"))
}

// runJava returns the command of a short program.
func runJava(t *testing.T, class string, path ...string) []string {
	t.Helper()
	return []string{programtest.Tool(t, "java", javaHelp), "-XX:TieredStopAtLevel=1", "-cp", strings.Join(path, string(filepath.ListSeparator)), class}
}

// prepareKotlinRelease fetches a release of the Kotlin SDK, and compiles the program for
// it with the versions of Ktor and Kotlin of that time.
func prepareKotlinRelease(t *testing.T, version string) []string {
	t.Helper()
	with := map[string]struct{ ktor, kotlin string }{"0.8.1": {"3.2.3", "2.2.21"}, "0.14.0": {"3.4.3", "2.3.21"}, "0.16.0": {"3.5.2", "2.4.21"}}[version]
	from := filepath.Join("releases", "kotlin")
	source := filepath.Join("src", "Client.kt")
	key := slices.Concat(programtest.Read(t, filepath.Join(from, "pom.xml")), programtest.Read(t, filepath.Join(from, source)))
	dir := programtest.Installed(t, filepath.Join("clients", "kotlin-"+version), key, func(dir string) {
		programtest.Empty(t, filepath.Join(dir, "src"))
		for _, name := range []string{"pom.xml", source} {
			programtest.Copy(t, filepath.Join(from, name), filepath.Join(dir, name))
		}
		programtest.Run(t, dir, "is Maven Central within reach?", 0, programtest.Tool(t, "mvn", javaHelp), "-B", "-q",
			"-Dsdk.version="+version, "-Dktor.version="+with.ktor, "-Dkotlin.version="+with.kotlin,
			"compile", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies", "-DoutputDirectory=lib")
	})
	return runJava(t, "ClientKt", filepath.Join(dir, "target", "classes"), filepath.Join(dir, "lib", "*"))
}

// prepareTypeScriptRelease installs a release of the TypeScript SDK. The newest ones are
// those of ts and ts2.
func prepareTypeScriptRelease(t *testing.T, version string) []string {
	t.Helper()
	name, ok := map[string]string{"1.32.2": "ts", "2.4.0": "ts2"}[version]
	if !ok {
		name = filepath.Join("releases", "ts", version)
	}
	dir := nodeModules(t, name)
	program := filepath.Join(dir, "release.mjs")
	programtest.Copy(t, filepath.Join("releases", "ts", "client.mjs"), program)
	return []string{programtest.Tool(t, "node", programtest.NodeHelp), program}
}

// preparePythonRelease installs a release of the Python SDK. The newest ones are those of
// py.
func preparePythonRelease(t *testing.T, version string) []string {
	t.Helper()
	from, requirements := "py", "requirements-"+version+".txt"
	if version != "1.30.0" && version != "2.3.0" {
		from = filepath.Join("releases", "py")
	}
	python := programtest.Python(t, filepath.Join("clients", requirements), filepath.Join(from, requirements))
	return []string{python, filepath.Join("releases", "py", "client.py")}
}

// prepareGoRelease builds the program with a release of the Go SDK. Its go.mod has the
// newest one.
func prepareGoRelease(t *testing.T, version string) []string {
	t.Helper()
	mod := version + ".mod"
	if version == "1.8.0" {
		mod = "go.mod"
	}
	binary := filepath.Join(programtest.Root(t), ".tools", "clients", "go-"+version)
	programtest.Run(t, filepath.Join("releases", "go"), "does the program fit the release?", 0, programtest.Tool(t, "go", programtest.GoHelp),
		"build", "-modfile="+mod, "-o", binary, ".")
	return []string{binary}
}

// prepareRustRelease builds the program with a release of the Rust SDK, which takes
// minutes the first time.
func prepareRustRelease(t *testing.T, version string) []string {
	t.Helper()
	return []string{buildRust(t, filepath.Join("releases", "rust", version), "rust-"+version, "rmcp-release")}
}

// buildLimit bounds the build of a Rust client.
const buildLimit = 15 * time.Minute

// buildRust builds a program in Rust, from a folder, below .tools/clients.
func buildRust(t *testing.T, from, name, program string) string {
	t.Helper()
	target := filepath.Join(programtest.Root(t), ".tools", "clients", name)
	ctx, cancel := context.WithTimeout(t.Context(), buildLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, programtest.Tool(t, "cargo", "cargo is needed for the Rust client: https://rustup.rs"), "build", "--locked", "--quiet")
	cmd.Dir, cmd.Env = from, append(os.Environ(), "CARGO_TARGET_DIR="+target)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return filepath.Join(target, "debug", program)
}

// prepareEras builds the server that can be of any era.
func prepareEras(t *testing.T) string {
	t.Helper()
	return programtest.Build(t, filepath.Join("clients", "eras"), ".", "./eras")
}
