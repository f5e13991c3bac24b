package main

import "testing"

func TestUnknownNamesAreAnsweredWithTheNearest(t *testing.T) {
	for name, want := range map[string]string{
		"gihub":   "no server gihub: did you mean github?",
		"GITHUB":  "no server GITHUB: did you mean github?",
		"weather": "no server weather: there are github, linear",
	} {
		if got := unknown("server", name, []string{"github", "linear"}).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got, want := unknown("tool", "echo", nil).Error(), "no tool echo: there are none"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDataFolderOnTheCommandLineWinsOverAURLOfTheEnvironment(t *testing.T) {
	if c := (target{Data: "d", URL: "https://x"}); c.remote() || c.folder() != "d" {
		t.Errorf("%+v is remote", c)
	}
	if c := (target{URL: "https://x"}); !c.remote() {
		t.Errorf("%+v is a folder", c)
	}
	if c := (target{}); c.remote() || c.folder() != defaultData {
		t.Errorf("%+v: folder %s", c, c.folder())
	}
}
