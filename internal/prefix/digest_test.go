package prefix

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// isPlainText says of each byte what digest.write says of words.
func isPlainText(p []byte) bool {
	return !bytes.ContainsFunc(p, func(r rune) bool { return r < 0x20 || r > 0x7F })
}

// writeBoth writes data to both digests in pieces whose sizes come from r, and
// compares the sums after each.
func writeBoth(t *testing.T, data []byte, r *rand.Rand) {
	t.Helper()
	var ours digest
	var theirs xxhash.Digest
	ours.reset()
	theirs.Reset()
	for written := 0; ; {
		if got, want := ours.sum(), theirs.Sum64(); got != want {
			t.Fatalf("after %d of %d bytes: %#x, want %#x", written, len(data), got, want)
		}
		if written == len(data) {
			return
		}
		piece := data[written:]
		piece = piece[:min(len(piece), r.IntN(1<<r.IntN(9)))]
		if len(piece) == 1 && r.IntN(2) == 0 {
			ours.tag(piece[0])
		} else if got, want := ours.write(piece), isPlainText(piece); got != want {
			t.Fatalf("%q is plain: %v, want %v", piece, got, want)
		}
		_, _ = theirs.Write(piece)
		written += len(piece)
	}
}

func TestDigestIsXXH64HoweverItIsWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 3000 {
		data := make([]byte, r.IntN(700))
		for i := range data {
			data[i] = byte(0x20 + r.IntN(0x60))
		}
		for range r.IntN(3) { // some are not plain
			if len(data) > 0 {
				data[r.IntN(len(data))] = byte(r.IntN(256))
			}
		}
		writeBoth(t, data, r)
	}
}

// TestDigestSeesWhatIsNotPlain wherever it stands, whatever was written before.
func TestDigestSeesWhatIsNotPlain(t *testing.T) {
	for _, length := range []int{1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 130} {
		for before := range blockSize + 1 {
			p := bytes.Repeat([]byte{0x7F}, length)
			for at := range p {
				for _, c := range []byte{0, 0x1F, 0x80, 0xFF} {
					p[at] = c
					var d digest
					d.reset()
					d.write(bytes.Repeat([]byte{1}, before))
					if d.write(p) {
						t.Fatalf("%#x at %d of %d after %d bytes is not seen", c, at, length, before)
					}
				}
				p[at] = ' '
			}
			var d digest
			d.reset()
			d.write(bytes.Repeat([]byte{1}, before))
			if !d.write(p) {
				t.Fatalf("%d plain bytes after %d others are not taken for plain", length, before)
			}
		}
	}
}

func FuzzDigest(f *testing.F) {
	f.Add([]byte("a text of more than one block, for the sake of the loop"), uint64(1))
	f.Add(bytes.Repeat([]byte{0x1F, 0x80}, 40), uint64(2))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		writeBoth(t, data, rand.New(rand.NewPCG(seed, 0)))
	})
}
