import fc from 'fast-check';
import { expect, it } from 'vitest';
import { EnvelopeReader, envelopeOf } from '../../src/client/grpc/envelope.ts';

it('messages are the same however their bytes are cut into pieces', () => {
  const messages = fc.array(fc.uint8Array({ maxLength: 40 }), { maxLength: 8 });
  fc.assert(
    fc.property(messages, fc.infiniteStream(fc.integer({ min: 1, max: 30 })), (sent, lengths) => {
      const bytes = Buffer.concat(sent.map(envelopeOf));
      const reader = new EnvelopeReader(40);
      const received: Uint8Array[] = [];
      for (let at = 0; at < bytes.length; ) {
        const piece = bytes.subarray(at, at + lengths.next().value!);
        received.push(...reader.read(piece));
        piece.fill(255); // messages are copies
        at += piece.length;
        if (at === bytes.length) expect(reader.isWithinMessage).toBe(false);
      }
      expect(received).toEqual(sent);
    }),
  );
});
