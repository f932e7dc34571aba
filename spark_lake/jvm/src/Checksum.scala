package strandline.spark

import java.util.zip.CRC32C

/** CRC-32C, which the JVM computes with the processor's instruction, and what joins two of them.
  *
  * {{{
  *   crc(a b) = crc(a) * x^(8 * bytes of b)  +  crc(b)      polynomials over bits, modulo Polynomial
  * }}}
  *
  * A checksum is a polynomial whose highest bit stands for x^0, so multiplying by x shifts to the
  * right. Joining costs two dozen multiplications of 32 steps at most, whatever the bytes are.
  */
object Checksum {
  // Castagnoli's, without its x^32.
  private final val Polynomial = 0x82f63b78
  private final val One = 0x80000000
  // x^(8 * 2^n)
  private val powers: Array[Int] = {
    val made = new Array[Int](31)
    made(0) = One >>> 8
    for (n <- 1 until made.length) made(n) = product(made(n - 1), made(n - 1))
    made
  }

  def of(bytes: Array[Byte], start: Int, length: Int): Int = {
    val crc = new CRC32C
    crc.update(bytes, start, length)
    crc.getValue.toInt
  }

  /** The checksum of bytes with the checksum `before`, and `length` more with the checksum `after`. */
  def joined(before: Int, after: Int, length: Int): Int = {
    var shifted = before
    var left = length
    var n = 0
    while (left != 0) {
      if ((left & 1) != 0) shifted = product(powers(n), shifted)
      left >>>= 1
      n += 1
    }
    shifted ^ after
  }

  private def product(left: Int, right: Int): Int = {
    var sum = 0
    var factor = left
    var term = right
    while (factor != 0) {
      // No branch: bits of a checksum cannot be foreseen.
      sum ^= term & (factor >> 31)
      term = (term >>> 1) ^ (Polynomial & -(term & 1))
      factor <<= 1
    }
    sum
  }
}
