package snapshot

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkUntouched measures a start and an end between which nothing changes, for
// workspaces of several sizes.
func BenchmarkUntouched(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			for i := range n {
				sub := filepath.Join(dir, fmt.Sprint(i%100))
				if err := os.MkdirAll(sub, 0o755); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), nil, 0o600); err != nil {
					b.Fatal(err)
				}
			}
			s := &memory{}
			for b.Loop() {
				k := keeper(s, 1, Limits{})
				if err := k.Restore(b.Context(), "p", "p", dir); err != nil {
					b.Fatal(err)
				}
				if err := k.Save(b.Context(), "p", "p", dir); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSaveAndRestore moves one file of 32 MiB, half of it compressible.
func BenchmarkSaveAndRestore(b *testing.B) {
	data := make([]byte, 32<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range len(data) / 2 {
		data[i] = byte(random.Uint32())
	}
	store := NewFolder(b.TempDir())
	for name, do := range map[string]func(k *Keeper, dir string) error{
		"save": func(k *Keeper, dir string) error {
			if err := k.Restore(b.Context(), "other", "other", dir); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "data"), data, 0o600); err != nil {
				return err
			}
			return k.Save(b.Context(), "other", "other", dir)
		},
		"restore": func(k *Keeper, dir string) error { return k.Restore(b.Context(), "p", "p", dir) },
	} {
		b.Run(name, func(b *testing.B) {
			from := b.TempDir()
			k := keeper(store, 1, Limits{})
			if err := k.Restore(b.Context(), "p", "p", from); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(from, "data"), data, 0o600); err != nil {
				b.Fatal(err)
			}
			if err := k.Save(b.Context(), "p", "p", from); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := do(keeper(store, 1, Limits{}), b.TempDir()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
