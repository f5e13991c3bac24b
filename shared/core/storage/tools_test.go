package storage_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestTheLongestEntryOfAToolFilterCounts(t *testing.T) {
	f := storage.ToolFilter{Allow: []string{"write_note*", "write_", "rea*"}, Deny: []string{"write_*", "write_notebook", "read", "x*"}}
	for tool, want := range map[string]bool{
		"write_file": false, "write_note": true, "write_notes": true, "write_notebook": false, "write_": true,
		"read": false, "read_file": true, "x": false, "other": true, "": true, "Write_file": false,
	} {
		commontest.EqualIn(t, tool, want, f.Allows(tool))
	}
	none := storage.ToolFilter{Deny: []string{"*"}}
	if none.Allows("") || none.Allows("a") || none.IsZero() || !(storage.ToolFilter{}).Allows("a") {
		t.Error("* or the zero value is not understood")
	}
}

func TestAStarInAToolFilterStandsForAnyText(t *testing.T) {
	f := storage.ToolFilter{Allow: []string{"*", "delete_draft*", "a*c"}, Deny: []string{"*delete*", "*_admin", "x*y*z", "a*"}}
	for tool, want := range map[string]bool{
		"read": true, "delete": false, "mass_delete_all": false, "delete_draft": true, "delete_drafts": true,
		"user_admin": false, "_admin": false, "user_admins": true, "xyz": false, "x1y2z": false, "xzy": true, "yxyz": true,
		"ab": false, "abc": true, "ac": true, "a": false,
	} {
		t.Run(tool, func(t *testing.T) {
			commontest.EqualIn(t, tool, want, f.Allows(tool))
		})
	}
	commontest.EqualIn(t, "of two entries that are as long, the one that allows counts", false, (storage.ToolFilter{Allow: []string{"get_*"}, Deny: []string{"*_all"}}).Allows("get_all"))
}

// Servers may trim or fold names, so a name like a refused one is refused. An entry with
// exactly this name allows it.
func TestAToolFilterRefusesNamesLikeARefusedOne(t *testing.T) {
	f := storage.ToolFilter{Deny: []string{"sh", "Delete-*"}, Allow: []string{"SH", "Delete-mine", "read_*"}, And: &storage.ToolFilter{Deny: []string{"read_key"}}}
	for tool, want := range map[string]bool{
		"sh": false, " sh": false, "sh\x00": false, "sh\n": false, "Sh": false, "ſh": false, "ｓh": false, "s\u200bh": false, "s\u00a0h": false, "\xffsh": false,
		"SH": true, "SH ": false, "shell": true, "s_h": true, "délete_x": true,
		"delete_x": false, "DELETE-x": false, "Delete-mine": true, "delete_mine": true, "read_Key": false, "read_x": true, "": true,
	} {
		commontest.EqualIn(t, tool, want, f.Allows(tool))
	}
	if only := (storage.ToolFilter{Deny: []string{"*"}, Allow: []string{"get_*"}}); only.Allows("Get_x") || !only.Allows("get_X") {
		t.Error("a filter that allows single tools allows others")
	}
}
