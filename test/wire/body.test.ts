import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cutForSlots, EnvelopeCollector, MessageBytes } from '../../src/listen/body.ts';
import { inEnvelope } from './raw.ts';

const MAX = 1000;

/** Returns the groups that the body delivers, and the rest. */
function collect(pieces: Iterable<Buffer>): { readonly runs: Buffer[]; readonly rest: Buffer } {
  const collector = new EnvelopeCollector(MAX);
  const runs: Buffer[] = [];
  for (const piece of pieces) runs.push(...collector.add(piece));
  return { runs, rest: collector.take() };
}

/** Cuts bytes into pieces of the given sizes, repeatedly. */
function* cut(bytes: Buffer, sizes: readonly number[]): Generator<Buffer> {
  for (let at = 0, i = 0; at < bytes.length; i += 1) {
    const size = sizes[i % sizes.length]!;
    yield bytes.subarray(at, at + size);
    at += size;
  }
}

const bodies = fc.array(fc.nat({ max: MAX })).map((lengths) => {
  return Buffer.concat(lengths.map((length, i) => inEnvelope(Buffer.alloc(length, i + 1))));
});
const sizes = fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 1, maxLength: 5 });

function endsOfEnvelopes(body: Buffer): Set<number> {
  const ends = new Set<number>();
  for (let at = 0; at + 5 <= body.length; ) {
    at += 5 + body.readUInt32BE(at + 1);
    ends.add(at);
  }
  return ends;
}

describe('a body of envelopes', () => {
  it('is delivered as it was sent, in groups of whole envelopes, whatever the chunks', () => {
    fc.assert(
      fc.property(bodies, sizes, (body, cuts) => {
        const { runs, rest } = collect(cut(body, cuts));
        expect(Buffer.concat(runs).equals(body)).toBe(true);
        expect(rest.length).toBe(0);
        const ends = endsOfEnvelopes(body);
        let at = 0;
        for (const run of runs) {
          at += run.length;
          expect(ends.has(at), `${at} ends an envelope`).toBe(true);
        }
      }),
    );
  });

  it('keeps and counts an incomplete end', () => {
    fc.assert(
      fc.property(bodies, sizes, fc.integer({ min: 1, max: 30 }), (body, cuts, missing) => {
        const part = body.subarray(0, Math.max(0, body.length - missing));
        const { runs, rest } = collect(cut(part, cuts));
        expect(Buffer.concat([...runs, rest]).equals(part)).toBe(true);
        const ends = [0, ...endsOfEnvelopes(body)].filter((end) => end <= part.length);
        expect(rest.length).toBe(part.length - Math.max(...ends));
      }),
    );
  });

  it('passes on an envelope above the size limit as soon as its header has arrived', () => {
    const claim = Buffer.concat([inEnvelope(Buffer.alloc(3)), Buffer.from([0, 0, 0, 0x10, 0])]);
    for (const size of [1, 2, 3, 5, 7, 100]) {
      expect(Buffer.concat(collect(cut(claim, [size])).runs).equals(claim), `in pieces of ${size}`).toBe(true);
    }
  });

  it('does not copy complete envelopes', () => {
    const piece = Buffer.concat([inEnvelope(Buffer.alloc(10)), inEnvelope(Buffer.alloc(20))]);
    expect(collect([piece]).runs[0]?.buffer).toBe(piece.buffer);
  });

  it('is divided so that each large or compressed message is alone', () => {
    const small = inEnvelope(Buffer.alloc(100));
    const large = inEnvelope(Buffer.alloc(70_000));
    const compressed = inEnvelope(Buffer.alloc(10), 1);
    const run = Buffer.concat([small, small, large, compressed, compressed, small, large]);
    const lengths = [...cutForSlots(run)].map(({ length }) => length);
    expect(lengths).toEqual([2 * 105, 70_005, 15, 15, 105, 70_005]);
    expect(Buffer.concat([...cutForSlots(run)]).equals(run)).toBe(true);
    expect([...cutForSlots(Buffer.concat([small, small]))]).toHaveLength(1);
  });
});

describe('the bytes of a message', () => {
  it('are delivered as they were sent, whatever the chunks', () => {
    fc.assert(
      fc.property(bodies, sizes, (body, cuts) => {
        const bytes = new MessageBytes();
        for (const piece of cut(body, cuts)) bytes.add(piece, body.length);
        expect(bytes.length).toBe(body.length);
        expect(bytes.take().equals(body)).toBe(true);
        expect(bytes.length).toBe(0);
      }),
    );
  });
});
