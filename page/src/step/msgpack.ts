/** Reads MessagePack, as the checkpointer of LangGraph for Python writes it, into what JSON can hold. */

const TEXT = new TextDecoder();
/** Bytes are shown in hexadecimal, up to so many. */
const SHOWN_BYTES = 32;

/** Returns the value. Throws if the bytes are no MessagePack. */
export function readMsgpack(bytes: Uint8Array): unknown {
  const reader = new Reader(bytes);
  const value = reader.value();
  if (!reader.isAtEnd) throw new RangeError('there are bytes after the value');
  return value;
}

class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.byteLength;
  }

  value(): unknown {
    const type = this.#unsigned(1);
    if (type < 0x80) return type;
    if (type < 0x90) return this.#map(type & 0x0f);
    if (type < 0xa0) return this.#array(type & 0x0f);
    if (type < 0xc0) return this.#text(type & 0x1f);
    if (type >= 0xe0) return type - 0x100;
    // Types that differ in the size of their length or number: 1, 2, 4 or 8 bytes.
    const sized = (first: number) => this.#unsigned(2 ** (type - first));
    if (type === 0xc0) return null;
    if (type === 0xc2 || type === 0xc3) return type === 0xc3;
    if (type >= 0xc4 && type <= 0xc6) return hexOf(this.#take(sized(0xc4)));
    if (type >= 0xc7 && type <= 0xc9) return this.#extension(sized(0xc7));
    if (type === 0xca) return this.#view.getFloat32(this.#move(4));
    if (type === 0xcb) return this.#view.getFloat64(this.#move(8));
    if (type >= 0xcc && type <= 0xcf) return sized(0xcc);
    if (type >= 0xd0 && type <= 0xd3) return this.#signed(2 ** (type - 0xd0));
    if (type >= 0xd4 && type <= 0xd8) return this.#extension(2 ** (type - 0xd4));
    if (type >= 0xd9 && type <= 0xdb) return this.#text(sized(0xd9));
    if (type === 0xdc || type === 0xdd) return this.#array(this.#unsigned(type === 0xdc ? 2 : 4));
    if (type === 0xde || type === 0xdf) return this.#map(this.#unsigned(type === 0xde ? 2 : 4));
    throw new RangeError(`type ${type} is not used`);
  }

  #map(count: number): Record<string, unknown> {
    const members: [string, unknown][] = [];
    for (let i = 0; i < count; i += 1) {
      const key = this.value();
      members.push([typeof key === 'string' ? key : (JSON.stringify(key) ?? ''), this.value()]);
    }
    return Object.fromEntries(members);
  }

  #array(count: number): unknown[] {
    const items: unknown[] = [];
    for (let i = 0; i < count; i += 1) items.push(this.value());
    return items;
  }

  /** LangGraph stores an object as an array of its module, its class and its value, which is MessagePack itself. */
  #extension(size: number): unknown {
    this.#move(1);
    const data = this.#take(size);
    try {
      const value = readMsgpack(data);
      return Array.isArray(value) && value.length > 2 ? value[2] : value;
    } catch {
      return hexOf(data);
    }
  }

  #text(size: number): string {
    return TEXT.decode(this.#take(size));
  }

  #unsigned(size: number): number {
    const at = this.#move(size);
    if (size === 8) return Number(this.#view.getBigUint64(at));
    return size === 4 ? this.#view.getUint32(at) : size === 2 ? this.#view.getUint16(at) : this.#view.getUint8(at);
  }

  #signed(size: number): number {
    const at = this.#move(size);
    if (size === 8) return Number(this.#view.getBigInt64(at));
    return size === 4 ? this.#view.getInt32(at) : size === 2 ? this.#view.getInt16(at) : this.#view.getInt8(at);
  }

  #take(size: number): Uint8Array {
    const at = this.#move(size);
    return this.#bytes.subarray(at, at + size);
  }

  /** Moves behind the next bytes. Returns where they begin. */
  #move(size: number): number {
    const at = this.#at;
    if (at + size > this.#bytes.byteLength) throw new RangeError('the value is not whole');
    this.#at = at + size;
    return at;
  }
}

function hexOf(bytes: Uint8Array): string {
  const shown = Array.from(bytes.subarray(0, SHOWN_BYTES), (byte) => byte.toString(16).padStart(2, '0')).join('');
  return `${bytes.byteLength} B: ${shown}${bytes.byteLength > SHOWN_BYTES ? '…' : ''}`;
}
