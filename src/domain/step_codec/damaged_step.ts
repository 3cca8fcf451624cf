/** Thrown if stored bytes are not what the codec wrote. */
export class DamagedStep extends Error {
  override readonly name = 'DamagedStep';
}
