import { describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';

describe('connectClient', () => {
  it.each([
    ['127.0.0.1:50051', 'http://127.0.0.1:50051'],
    ['localhost:50051', 'http://localhost:50051'],
    ['[::1]:50051', 'http://[::1]:50051'],
    ['http://example.org:8080', 'http://example.org:8080'],
    ['https://example.org', 'https://example.org'],
  ])('understands %s', (address, url) => {
    expect(connectClient({ address }).url).toBe(url);
  });

  it.each(['', 'http://', 'host:port', 'host:99999', 'http://host/path', 'http://user@host', 'ftp://host'])(
    'refuses %j at once, and says what is wanted',
    (address) => {
      expect(() => connectClient({ address })).toThrow(/is not an address: write host:port/);
    },
  );
});
