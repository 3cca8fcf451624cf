import { decode, ExtData } from '@msgpack/msgpack';

/** Bytes are shown in hexadecimal, up to so many. */
const SHOWN_BYTES = 32;

/**
 * Reads MessagePack, as the checkpointer of LangGraph for Python writes it, into what JSON can hold. Throws if the
 * bytes are no MessagePack.
 */
export function readMsgpack(bytes: Uint8Array): unknown {
  return plain(
    decode(bytes, { mapKeyConverter: (key) => (typeof key === 'string' ? key : JSON.stringify(plain(key))) }),
  );
}

function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return hexOf(value);
  if (value instanceof Date) return value.toISOString();
  if (value instanceof ExtData) return objectOf(value.data as Uint8Array);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, plain(member)]));
}

/** LangGraph stores an object as an array of its module, its class and its value, which is MessagePack itself. */
function objectOf(bytes: Uint8Array): unknown {
  try {
    const value = readMsgpack(bytes);
    return Array.isArray(value) && value.length > 2 ? value[2] : value;
  } catch {
    return hexOf(bytes);
  }
}

function hexOf(bytes: Uint8Array): string {
  const shown = Array.from(bytes.subarray(0, SHOWN_BYTES), (byte) => byte.toString(16).padStart(2, '0')).join('');
  return `${bytes.byteLength} B: ${shown}${bytes.byteLength > SHOWN_BYTES ? '…' : ''}`;
}
