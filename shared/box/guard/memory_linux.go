package guard

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Left returns how many bytes of memory are free for programs on this machine, and how many it has
// in total. If a control group of this program leaves less, Left returns the numbers of that
// group.
func Left() (free, total int64, known bool) {
	info := numbers("/proc/meminfo", ":")
	free, total, known = info["MemAvailable"]<<10, info["MemTotal"]<<10, info["MemAvailable"] > 0
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return free, total, known
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		root, most, now, cache := "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
		switch parts[1] {
		case "":
		case "memory":
			root, most, now, cache = root+"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
		default:
			continue
		}
		for dir := filepath.Join(root, parts[2]); strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
			limit, ok := number(filepath.Join(dir, most))
			if !ok || known && limit >= total {
				continue // the group has no limit ("max"), or one above the total
			}
			used, ok := number(filepath.Join(dir, now))
			if left := max(limit-used+numbers(filepath.Join(dir, "memory.stat"), " ")[cache], 0); ok && left < free {
				free, total = left, limit
			}
		}
	}
	return free, total, known
}

func number(file string) (int64, bool) {
	text, err := os.ReadFile(file)
	n, failed := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && failed == nil
}

func numbers(file, between string) map[string]int64 {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // nothing was written
	all := map[string]int64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), between)
		text, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			all[name] = n
		}
	}
	return all
}
