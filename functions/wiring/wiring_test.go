package wiring_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func wired(t *testing.T, p wiring.Parts) *wiring.Function {
	t.Helper()
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"kept":{"command":"a","x-dormouse":{"box":{"snapshot":"session"}}},
		"common":{"command":"a","x-dormouse":{"box":{"snapshot":"principal"}}},"plain":{"command":"a"}}}`), "servers.json", nil)
	commontest.OK(t, err)
	p.Store, p.Meter, p.Fleet = storagetest.NewMemory(), meter.New(meter.Options{}), places.New("process", "", nil)
	f, err := wiring.New(wiring.Settings{Servers: servers, Secret: make([]byte, 32)}, p)
	commontest.OK(t, err)
	return f
}

func TestAnEditedProgramIsAnotherServerForTheNextMessage(t *testing.T) {
	dir := t.TempDir()
	program, file := filepath.Join(dir, "a.py"), filepath.Join(dir, "servers.json")
	commontest.OK(t, os.WriteFile(program, []byte("1"), 0o600))
	commontest.OK(t, os.WriteFile(file, []byte(`{"mcpServers":{"mine":{"command":"python3","args":["`+program+`"]}}}`), 0o600))
	servers, _, err := serversfile.LoadHere(file, func(name string) (string, bool) { return "/bin", name == "PATH" })
	commontest.OK(t, err)
	f, err := wiring.New(wiring.Settings{Servers: servers, Secret: make([]byte, 32)}, wiring.Parts{Store: storagetest.NewMemory(), Meter: meter.New(meter.Options{}), Fleet: places.New("process", "", nil)})
	commontest.OK(t, err)
	synctest.Test(t, func(t *testing.T) {
		before, _ := f.Server("mine")
		commontest.OK(t, os.WriteFile(program, []byte("22"), 0o600))
		time.Sleep(10 * time.Millisecond) // a look at the files is good for so long
		after, _ := f.Server("mine")
		if again, _ := f.Server("mine"); before.Digest == after.Digest || again.Digest != after.Digest {
			t.Errorf("the digests are %s, and after the edit %s and %s", before.Digest, after.Digest, again.Digest)
		}
	})
}

func TestWhatIsKeptForASessionGoesWithIt(t *testing.T) {
	searched := map[string]bool{}
	f := wired(t, wiring.Parts{Snapshots: "folder:/x", Forget: func(_ context.Context, box storage.BoxID, _ string, _ storage.Generation, remembers bool) error {
		searched[string(box)] = remembers
		return nil
	}})
	for server, want := range map[string]bool{"kept": true, "common": false, "plain": false, "unknown": false} {
		commontest.EqualIn(t, server, want, f.Relay.Kept(server))
	}
	for _, box := range []storage.BoxID{"t/kept", "t/unknown"} {
		commontest.OK(t, f.Relay.Forget(t.Context(), box, "s", 1))
	}
	commontest.SameIn(t, "may have kept memory", map[string]bool{"t/kept": false, "t/unknown": true}, searched)
	env, err := f.Relay.Launch(storage.Box{Server: "kept"})
	commontest.OK(t, err)
	commontest.EqualIn(t, "a runner is told", "folder:/x", env["DORMOUSE_SNAPSHOTS"])
}

func TestBucketIsForThoseFunctionsWithRightsInIt(t *testing.T) {
	f := wired(t, wiring.Parts{Snapshots: "host", Bucket: bucket.New(bucket.Config{})})
	if f.Relay.Snapshots != nil || f.Relay.Forget != nil {
		t.Error("every function uses it")
	}
	if c := f.RelayWithBucket(); c.Snapshots == nil || c.Forget == nil || c.Kept == nil {
		t.Error("none does")
	}
}

// A call that wakes its server waits in the inbox, and the function that hands it over asks
// for the tokens of its user.
func TestASleepingServerIsWokenWithTheTokensOfItsUser(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"acts":{"command":"a","env":{"ACTS_AS":"${principal:notes}"}}}}`), "servers.json", nil)
	commontest.OK(t, err)
	f, err := wiring.New(wiring.Settings{Servers: servers, Secret: make([]byte, 32)}, wiring.Parts{
		Store: storagetest.NewMemory(), Meter: meter.New(meter.Options{}), Fleet: places.New("process", "", nil),
	})
	commontest.OK(t, err)
	for _, principal := range []string{"ada", "bob"} {
		commontest.OK(t, f.Vault.Put(t.Context(), "acme", principal, "notes", "token of "+principal))
	}
	for _, principal := range []string{"ada", "bob"} {
		has, err := f.Relay.Secrets(t.Context(), storage.Session{Server: "acts", Tenant: "acme", Principal: principal})
		if got, want := has["notes"].Value, "token of "+principal; err != nil || got != want {
			t.Errorf("a call of %s wakes a server that acts with %q, %v; want %q", principal, got, err, want)
		}
	}
}

// A function that calls no third party starts without the client secrets, also if the servers
// file names a variable for one.
func TestAFunctionThatCallsNoThirdPartyNeedsNoneOfTheirSecrets(t *testing.T) {
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"acts":{"command":"a","env":{"ACTS_AS":"${principal:notes}"}}},"x-dormouse":{"connect":{"notes":{"authorize":"https://notes.example/a","token":"https://notes.example/t","client_id":"me","client_secret":"${NOTES_SECRET}"}}}}`), "servers.json", func(string) (string, bool) { return "", false })
	commontest.OK(t, err)
	for text, starts := range map[string]bool{"none": true, `{"notes":"word"}`: true, "": false} {
		s := wiring.Settings{Servers: servers, Secret: make([]byte, 32)}
		commontest.OK(t, s.Read(func(name string) string { return map[string]string{wiring.EnvConnectSecrets: text}[name] }))
		_, err := wiring.New(s, wiring.Parts{Store: storagetest.NewMemory(), Meter: meter.New(meter.Options{}), Fleet: places.New("process", "", nil)})
		commontest.EqualIn(t, fmt.Sprintf("with %q: %v", text, err), starts, err == nil)
	}
}

func TestLineOfAnEventSaysForWhomItWas(t *testing.T) {
	var line bytes.Buffer
	f := &wiring.Function{Observer: observe.Log(slog.New(slog.NewJSONHandler(&line, nil))), Meter: meter.New(meter.Options{})}
	of := func(tenant string) storage.Account { return storage.Account{Tenant: tenant, Server: "counter"} }
	commontest.OK(t, wiring.Event(f, of, func(context.Context, string) error { return nil })(t.Context(), "acme"))
	commontest.Contains(t, "", `"server":"counter"`, line.String())
	commontest.Contains(t, "", `"tenant":"acme","units":{"invocations":1`, line.String())
}

// Functions of two deployments run side by side for some time. Each must open tickets that
// the other has sealed.
func TestTheSecretIsReplacedWithoutLosingATicket(t *testing.T) {
	before, after := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	var deployments []*wiring.Function
	for _, s := range []wiring.Settings{
		{Secret: before}, {Secret: before, OtherSecret: after}, {Secret: after, OtherSecret: before}, {Secret: after},
	} {
		f, err := wiring.New(s, wiring.Parts{Store: storagetest.NewMemory(), Meter: meter.New(meter.Options{})})
		commontest.OK(t, err)
		deployments = append(deployments, f)
	}
	for i, from := range deployments {
		for j, to := range deployments {
			_, err := to.Relay.Sealer.Open(from.Relay.Sealer.Seal(storage.Address{Session: "s"}, 1))
			_, opened := to.States.Open(from.States.Seal([]byte("s")))
			if neighbours := i-j <= 1 && j-i <= 1; neighbours && (err != nil || !opened) {
				t.Errorf("deployment %d does not open the ticket (%v) or the state (%t) of deployment %d", j, err, opened, i)
			}
		}
	}
	last := deployments[len(deployments)-1]
	if _, err := last.Relay.Sealer.Open(deployments[0].Relay.Sealer.Seal(storage.Address{}, 1)); storage.CodeOf(err) != storage.Invalid {
		t.Errorf("a ticket of the secret that was replaced: %v", err)
	}
}
