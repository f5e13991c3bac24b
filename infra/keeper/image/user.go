package image

import (
	"cmp"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/erofs/go-erofs"
)

// User is the user as which a server runs in its box.
type User struct {
	UID, GID uint32
	Groups   []uint32
	Home     string
}

// User looks a user up in /etc/passwd and /etc/group of the image. The argument text is "NAME",
// "UID", or one of them with ":GROUP"; "" means root.
func (i *Image) User(text string) (User, error) {
	who, group, grouped := strings.Cut(text, ":")
	u := User{Home: "/"}
	who = cmp.Or(who, "0")
	system, err := erofs.Open(i.File)
	if err != nil {
		return u, err
	}
	uid, numeric := number(who)
	u.UID = uid
	known := false
	name := who
	eachLine(system, "etc/passwd", 7, func(f []string) {
		id, ok := number(f[2])
		if known || !ok || (f[0] != who && (!numeric || id != uid)) {
			return
		}
		gid, _ := number(f[3])
		known, name, u.UID, u.GID, u.Home = true, f[0], id, gid, f[5]
	})
	if !known && !numeric {
		return u, fmt.Errorf("the image has no user %q in /etc/passwd", who)
	}
	if !grouped {
		eachLine(system, "etc/group", 4, func(f []string) {
			gid, ok := number(f[2])
			for member := range strings.SplitSeq(f[3], ",") {
				if ok && member == name {
					u.Groups = append(u.Groups, gid)
				}
			}
		})
		return u, nil
	}
	gid, ok := number(group)
	eachLine(system, "etc/group", 3, func(f []string) {
		if id, numeric := number(f[2]); !ok && numeric && f[0] == group {
			gid, ok = id, true
		}
	})
	if !ok {
		return u, fmt.Errorf("the image has no group %q in /etc/group", group)
	}
	u.GID = gid
	return u, nil
}

// eachLine splits each line of a file at the colons. It calls fn with the fields, if there are
// enough.
func eachLine(system fs.FS, file string, enough int, fn func([]string)) {
	text, err := fs.ReadFile(system, file)
	if err != nil {
		return // an image need not have this file
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(f) >= enough {
			fn(f)
		}
	}
}

func number(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return uint32(n), err == nil
}
