import { PassThrough, Readable } from 'node:stream';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { coalesceBody, wholeBlocks, wholeEnvelopes } from '../../src/listen/body.ts';
import { Turnstile } from '../../src/listen/turnstile.ts';
import { inEnvelope } from './raw.ts';

const MAX = 1000;

async function collect(pieces: AsyncIterable<Buffer>): Promise<Buffer[]> {
  const all: Buffer[] = [];
  for await (const piece of pieces) all.push(Buffer.from(piece));
  return all;
}

/** Cuts bytes into pieces of the given sizes, over and over. */
async function* cut(bytes: Buffer, sizes: readonly number[]): AsyncGenerator<Buffer> {
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

describe('a body in envelopes', () => {
  it('comes as it was sent, in runs of whole envelopes, however it was cut', async () => {
    await fc.assert(
      fc.asyncProperty(bodies, sizes, async (body, cuts) => {
        const pieces = await collect(wholeEnvelopes(cut(body, cuts), MAX));
        expect(Buffer.concat(pieces).equals(body)).toBe(true);
        const ends = endsOfEnvelopes(body);
        let at = 0;
        for (const piece of pieces) {
          at += piece.length;
          expect(ends.has(at), `${at} ends an envelope`).toBe(true);
        }
      }),
    );
  });

  it('an unfinished end is passed on, for the decoder to refuse', async () => {
    await fc.assert(
      fc.asyncProperty(bodies, sizes, fc.integer({ min: 1, max: 30 }), async (body, cuts, missing) => {
        const part = body.subarray(0, Math.max(0, body.length - missing));
        expect(Buffer.concat(await collect(wholeEnvelopes(cut(part, cuts), MAX))).equals(part)).toBe(true);
      }),
    );
  });

  it('an envelope larger than allowed is passed on as soon as its header is there', async () => {
    for (const size of [1, 2, 3, 5, 7, 100]) {
      const source = new PassThrough();
      const pieces = wholeEnvelopes(source, MAX);
      const claim = Buffer.concat([inEnvelope(Buffer.alloc(3)), Buffer.from([0, 0, 0, 0x10, 0]), Buffer.alloc(50)]);
      let seen = 0;
      const reading = (async () => {
        while (seen < 8 + 5) seen += (await pieces.next()).value?.length ?? 0;
      })();
      for await (const piece of cut(claim.subarray(0, 8 + 5), [size])) source.write(piece);
      await reading;
      expect(seen).toBe(13);
    }
  });

  it('what is whole is not copied and not held back', async () => {
    const piece = Buffer.concat([inEnvelope(Buffer.alloc(10)), inEnvelope(Buffer.alloc(20))]);
    const source = new PassThrough();
    const pieces = wholeEnvelopes(source, MAX);
    source.write(piece);
    const { value } = await pieces.next();
    expect(value?.buffer).toBe(piece.buffer);
  });
});

describe('a body in one piece', () => {
  it('comes as it was sent, in blocks', async () => {
    await fc.assert(
      fc.asyncProperty(bodies, sizes, async (body, cuts) => {
        const pieces = await collect(wholeBlocks(cut(body, cuts), 64));
        expect(Buffer.concat(pieces).equals(body)).toBe(true);
        for (const piece of pieces.slice(0, -1)) expect(piece.length).toBeGreaterThanOrEqual(64);
      }),
    );
  });
});

describe('a request', () => {
  it('is iterated in pieces that fit its content type, and lives on when its reader stops', async () => {
    const body = Buffer.concat([inEnvelope(Buffer.alloc(3)), inEnvelope(Buffer.alloc(4))]);
    const request = Readable.from(cut(body, [1]), { objectMode: false });
    coalesceBody(request, { 'content-type': 'application/grpc+proto' }, MAX, new Turnstile(MAX));
    for await (const piece of request as AsyncIterable<Buffer>) {
      expect(piece.length).toBe(8);
      break;
    }
    expect(request.destroyed).toBe(false);
  });
});
