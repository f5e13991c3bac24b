package boot

import "testing"

func TestEverybodyIsLetInOnOneMachineOnlyAndOnRequestOnly(t *testing.T) {
	const local = "http://127.0.0.1:1/word"
	for _, test := range []struct {
		mode, local, sam string
		open, refused    bool
	}{
		{"", "", "", false, false},
		{"", local, "true", false, false},
		{"keys", "", "", false, false},
		{"keys", local, "", false, false},
		{"open", local, "", true, false},
		{"open", "", "true", true, false},
		{"open", "", "", false, true},
		{"open", "", "false", false, true},
		{"Open", local, "", false, true},
		{"off", local, "", false, true},
	} {
		t.Setenv(EnvAccess, test.mode)
		t.Setenv(EnvLocal, test.local)
		t.Setenv(envSAMLocal, test.sam)
		open, err := access()
		if open != test.open || (err != nil) != test.refused {
			t.Errorf("%+v: %v, %v", test, open, err)
		}
	}
}
