import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { endOf, envelope, envelopesOf } from '../../page/src/watch/envelopes.ts';

function bodyOf(pieces: readonly Uint8Array[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(piece);
      controller.close();
    },
  });
}

describe('messages of a stream', () => {
  it('are the same, wherever the body is cut into pieces', async () => {
    const messages = fc.array(fc.uint8Array({ maxLength: 300 }), { maxLength: 6 });
    await fc.assert(
      fc.asyncProperty(messages, fc.array(fc.nat(2000), { maxLength: 8 }), async (sent, cuts) => {
        const bytes = Buffer.concat(sent.map(envelope));
        const places = [0, ...cuts.filter((cut) => cut < bytes.length).sort((a, b) => a - b), bytes.length];
        const pieces = places.slice(1).map((to, i) => bytes.subarray(places[i], to));
        const received: number[][] = [];
        for await (const { data } of envelopesOf(bodyOf(pieces))) received.push([...data]);
        expect(received).toEqual(sent.map((each) => [...each]));
      }),
    );
  });

  it('must be complete', async () => {
    const read = async () => {
      for await (const _ of envelopesOf(bodyOf([envelope(new Uint8Array(9)).subarray(0, 8)])));
    };
    await expect(read()).rejects.toThrow('the response ended within a message');
  });

  it('end with the error of the call, or with none', () => {
    const json = (value: unknown) => new TextEncoder().encode(JSON.stringify(value));
    expect(endOf(0, json({}))).toBeUndefined();
    expect(endOf(2, json({}))).toEqual({ error: undefined });
    expect(endOf(2, json({ error: { code: 'unavailable', message: 'x' } }))).toEqual({
      error: { code: 'unavailable', message: 'x' },
    });
  });
});
