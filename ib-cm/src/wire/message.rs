//! [`Message`]: any communication management message, distinguished by its attribute.

use super::{
    Attribute, MAD_LEN, Mad, Malformed, apr, drep, dreq, lap, mad, mra, rej, rep, req, rtu, sidr_rep,
    sidr_req,
};

/// Declares [`Message`] from its variants, each with its attribute and the module of its format.
macro_rules! messages {
    ($( $(#[$doc:meta])* $variant:ident = $attribute:ident, $module:ident; )*) => {
        /// A decoded communication management message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Message {
            $( $(#[$doc])* $variant($module::Repr), )*
            /// A message with an unknown or unsupported attribute.
            Other(Attribute),
        }

        impl Message {
            /// Decodes a MAD into its header and message.
            ///
            /// # Errors
            /// [`Malformed::Truncated`] if there are fewer than 256 bytes.
            pub fn parse(bytes: &[u8]) -> Result<(mad::Repr, Self), Malformed> {
                let bytes: &Mad = bytes.first_chunk().ok_or(Malformed::Truncated)?;
                let header = mad::Repr::parse(&mad::Packet::new_checked(bytes)?);
                let message = match header.attr_id {
                    $( Attribute::$attribute => {
                        Self::$variant($module::Repr::parse(&$module::Packet::new_checked(bytes)?))
                    } )*
                    other => Self::Other(other),
                };
                Ok((header, message))
            }

            /// Returns the attribute, which identifies the kind of message.
            pub fn attribute(&self) -> Attribute {
                match self {
                    $( Self::$variant(_) => Attribute::$attribute, )*
                    Self::Other(other) => *other,
                }
            }

            /// Encodes the message as a MAD with transaction id `tid`. `attr_mod` must be 0 unless
            /// the message carries vendor options.
            pub fn emit(&self, tid: u64, attr_mod: u32) -> Mad {
                let mut bytes = [0; MAD_LEN];
                match self {
                    $( Self::$variant(repr) => {
                        if let Ok(mut packet) = $module::Packet::new_checked(&mut bytes[..]) {
                            repr.emit(&mut packet);
                        }
                    } )*
                    Self::Other(_) => {}
                }
                if let Ok(mut packet) = mad::Packet::new_checked(&mut bytes[..]) {
                    mad::Repr::message(self.attribute(), tid, attr_mod).emit(&mut packet);
                }
                bytes
            }
        }

        $( impl From<$module::Repr> for Message {
            fn from(repr: $module::Repr) -> Self {
                Self::$variant(repr)
            }
        } )*
    };
}

messages! {
    /// Request for communication.
    Req = REQ, req;
    /// Message receipt acknowledgement.
    Mra = MRA, mra;
    /// Reject.
    Rej = REJ, rej;
    /// Reply to a request for communication.
    Rep = REP, rep;
    /// Ready to use.
    Rtu = RTU, rtu;
    /// Request for communication release.
    Dreq = DREQ, dreq;
    /// Reply to a request for communication release.
    Drep = DREP, drep;
    /// Service id resolution request.
    SidrReq = SIDR_REQ, sidr_req;
    /// Service id resolution response.
    SidrRep = SIDR_REP, sidr_rep;
    /// Load alternate path.
    Lap = LAP, lap;
    /// Alternate path response.
    Apr = APR, apr;
}
