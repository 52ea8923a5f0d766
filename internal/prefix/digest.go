package prefix

import (
	"encoding/binary"
	"math/bits"
)

// digest is XXH64 of the canonical stream, by the algorithm's specification
// (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), with seed 0. It is not the
// library's because its inner loop, which waits for multiplications, also looks at
// what it hashes, at no cost: a long text needs no pass of its own to find the
// control characters that JSON forbids.
type digest struct {
	v1, v2, v3, v4 uint64
	total          uint64
	mem            [blockSize]byte // the end of what was written, which may be a whole block
	n              int             // bytes used of mem
}

const (
	blockSize = 32

	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime3 uint64 = 0x165667B19E3779F9
	prime4 uint64 = 0x85EBCA77C2B2AE63
	prime5 uint64 = 0x27D4EB2F165667C5
)

// aboveControls is added to bytes of ASCII: all but control characters get a high bit.
const aboveControls = 0x6060606060606060

func (d *digest) reset() {
	p1 := prime1 // sums of constants may not overflow
	d.v1, d.v2, d.v3, d.v4 = p1+prime2, prime2, 0, -p1
	d.total, d.n = 0, 0
}

// tag writes one byte.
func (d *digest) tag(t byte) {
	if d.n == blockSize {
		d.block()
	}
	d.mem[d.n] = t
	d.n++
	d.total++
}

// write writes p and reports whether it is plain: ASCII without control characters.
func (d *digest) write(p []byte) (plain bool) {
	d.total += uint64(len(p))
	if d.n+len(p) <= blockSize {
		d.n += copy(d.mem[d.n:], p)
		return isPlain(note(p))
	}
	rest := p
	if d.n > 0 {
		rest = p[copy(d.mem[d.n:], p):]
		d.block()
	}
	or, and := d.blocks(rest)
	d.n = copy(d.mem[:], rest[(len(rest)-1)&^(blockSize-1):])
	// What has gone through mem is in the first and the last block of p.
	if len(p) < 2*blockSize {
		return isPlain(note(p))
	}
	headOr, headAnd := note(p[:blockSize])
	tailOr, tailAnd := note(p[len(p)-blockSize:])
	return isPlain(or|headOr|tailOr, and&headAnd&tailAnd)
}

// block hashes mem, which is full.
func (d *digest) block() {
	d.v1 = round(d.v1, binary.LittleEndian.Uint64(d.mem[0:]))
	d.v2 = round(d.v2, binary.LittleEndian.Uint64(d.mem[8:]))
	d.v3 = round(d.v3, binary.LittleEndian.Uint64(d.mem[16:]))
	d.v4 = round(d.v4, binary.LittleEndian.Uint64(d.mem[24:]))
	d.n = 0
}

// blocks hashes the blocks of p but the last, whole or not, and returns what note
// would say of them. That the last is left spares every round the arithmetic by which
// a slice's pointer stays within its array; with it, the rounds take a sixth longer.
func (d *digest) blocks(p []byte) (or, and uint64) {
	v1, v2, v3, v4 := d.v1, d.v2, d.v3, d.v4
	and = highBits
	for len(p) > blockSize {
		w := binary.LittleEndian.Uint64(p[0:8])
		or |= w
		and &= w + aboveControls
		v1 = bits.RotateLeft64(v1+w*prime2, 31) * prime1
		w = binary.LittleEndian.Uint64(p[8:16])
		or |= w
		and &= w + aboveControls
		v2 = bits.RotateLeft64(v2+w*prime2, 31) * prime1
		w = binary.LittleEndian.Uint64(p[16:24])
		or |= w
		and &= w + aboveControls
		v3 = bits.RotateLeft64(v3+w*prime2, 31) * prime1
		w = binary.LittleEndian.Uint64(p[24:32])
		or |= w
		and &= w + aboveControls
		v4 = bits.RotateLeft64(v4+w*prime2, 31) * prime1
		p = p[blockSize:]
	}
	d.v1, d.v2, d.v3, d.v4 = v1, v2, v3, v4
	return or, and
}

// note returns the OR of p's words, and the AND of their sums with aboveControls.
func note(p []byte) (or, and uint64) {
	and = highBits
	if n := len(p); n < 8 {
		last := uint64(0x2020202020202020) // spaces, of which there is nothing to note
		switch {
		case n >= 4:
			last = uint64(binary.LittleEndian.Uint32(p[n-4:]))<<32 | uint64(binary.LittleEndian.Uint32(p))
		case n > 0:
			last = last<<24 | uint64(p[n-1])<<16 | uint64(p[n/2])<<8 | uint64(p[0])
		}
		return last, and & (last + aboveControls)
	}
	last := binary.LittleEndian.Uint64(p[len(p)-8:])
	for len(p) > 8 {
		w := binary.LittleEndian.Uint64(p)
		or |= w
		and &= w + aboveControls
		p = p[8:]
	}
	return or | last, and & (last + aboveControls)
}

// isPlain tells from what note says whether all bytes are ASCII and none of them is
// a control character.
func isPlain(or, and uint64) bool { return or&highBits == 0 && and&highBits == highBits }

// sum returns the hash of what has been written.
func (d *digest) sum() uint64 {
	if d.n == blockSize {
		all := *d
		all.block()
		return all.sum()
	}
	rest := d.mem[:d.n]
	h := prime5
	if d.total >= blockSize {
		h = bits.RotateLeft64(d.v1, 1) + bits.RotateLeft64(d.v2, 7) + bits.RotateLeft64(d.v3, 12) + bits.RotateLeft64(d.v4, 18)
		for _, v := range [...]uint64{d.v1, d.v2, d.v3, d.v4} {
			h = (h^round(0, v))*prime1 + prime4
		}
	}
	h += d.total
	for ; len(rest) >= 8; rest = rest[8:] {
		h = bits.RotateLeft64(h^round(0, binary.LittleEndian.Uint64(rest)), 27)*prime1 + prime4
	}
	if len(rest) >= 4 {
		h = bits.RotateLeft64(h^uint64(binary.LittleEndian.Uint32(rest))*prime1, 23)*prime2 + prime3
		rest = rest[4:]
	}
	for _, b := range rest {
		h = bits.RotateLeft64(h^uint64(b)*prime5, 11) * prime1
	}
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}

func round(v, w uint64) uint64 { return bits.RotateLeft64(v+w*prime2, 31) * prime1 }
