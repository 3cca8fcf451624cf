/** A row of that key is there already; thrown by engines for primary keys and unique indexes. */
export class UniqueViolation extends Error {
  override readonly name = 'UniqueViolation';
}
