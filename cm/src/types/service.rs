//! [`Service`] and [`ServiceRecord`]: services registered with an InfiniBand subnet administrator.

use uverbs_abi::ib_user_sa::IbUserServiceRec;
use uverbs_abi::rdma_user_cm::{
    RDMA_USER_CM_IB_SERVICE_FLAG_ID, RDMA_USER_CM_IB_SERVICE_FLAG_NAME, RDMA_USER_CM_IB_SERVICE_NAME_SIZE,
    RdmaUcmIbService,
};
use verbs::{Cause, Gid};

use super::IbAddress;

/// A service to look up, by id or by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Service<'a> {
    /// The service id.
    Id(u64),
    /// The name, at most 63 bytes.
    Name(&'a str),
}

/// A service registered with the subnet administrator.
///
/// # References
/// IBTA volume 1, section 15.2.5.14 (ServiceRecord)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// The service id.
    pub service_id: u64,
    /// The GID of the port that offers the service.
    pub gid: Gid,
    /// The partition key for reaching the service.
    pub pkey: u16,
    /// The validity of the record, in seconds.
    pub lease: u32,
    /// The service key in the record.
    pub key: [u8; 16],
    /// The name up to the first NUL; invalid UTF-8 is replaced.
    pub name: String,
}

impl Service<'_> {
    /// Returns the service as encoded in the command.
    ///
    /// # Errors
    /// [`Cause::Limit`] for a name that is too long, [`Cause::Other`] for a name with a NUL.
    pub(crate) fn to_kernel(self) -> Result<RdmaUcmIbService, Cause> {
        let mut service = RdmaUcmIbService::default();
        match self {
            Self::Id(id) => {
                service.service_id = id;
                service.flags = RDMA_USER_CM_IB_SERVICE_FLAG_ID;
            }
            Self::Name(name) => {
                let bytes = name.as_bytes();
                let max = RDMA_USER_CM_IB_SERVICE_NAME_SIZE - 1;
                if bytes.len() > max {
                    let (asked, max) = (bytes.len() as u64, max as u64);
                    return Err(Cause::Limit { name: "length of the service's name", asked, min: 0, max });
                }
                if bytes.contains(&0) {
                    return Err(Cause::Other { reason: "a service's name has no NUL".into() });
                }
                service.service_name[..bytes.len()].copy_from_slice(bytes);
                service.flags = RDMA_USER_CM_IB_SERVICE_FLAG_NAME;
            }
        }
        Ok(service)
    }
}

impl ServiceRecord {
    /// Returns the address for connecting to the service.
    pub const fn address(&self) -> IbAddress {
        IbAddress {
            pkey: self.pkey,
            flow_info: 0,
            gid: self.gid,
            service_id: self.service_id,
            service_mask: u64::MAX,
            scope_id: 0,
        }
    }
}

impl From<&IbUserServiceRec> for ServiceRecord {
    fn from(record: &IbUserServiceRec) -> Self {
        let name = record.name.split(|byte| *byte == 0).next().unwrap_or_default();
        Self {
            service_id: record.id.to_native(),
            gid: Gid(record.gid),
            pkey: record.pkey.to_native(),
            lease: record.lease.to_native(),
            key: record.key,
            name: String::from_utf8_lossy(name).into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_by_its_number_or_its_name() {
        let by_id = Service::Id(7).to_kernel().unwrap();
        assert_eq!((by_id.service_id, by_id.flags), (7, 1));
        let by_name = Service::Name("storage").to_kernel().unwrap();
        assert_eq!((&by_name.service_name[..8], by_name.flags), (&b"storage\0"[..], 2));
    }

    #[test]
    fn a_name_that_the_command_cannot_carry_is_refused() {
        assert!(Service::Name(&"x".repeat(63)).to_kernel().is_ok());
        let long = Service::Name(&"x".repeat(64)).to_kernel().unwrap_err();
        assert!(matches!(long, Cause::Limit { asked: 64, max: 63, .. }), "{long}");
        assert!(Service::Name("a\0b").to_kernel().is_err());
    }

    #[test]
    fn a_record_from_anyone_is_read_without_trust() {
        let mut record = IbUserServiceRec { name: [b'n'; 64], ..IbUserServiceRec::default() };
        assert_eq!(ServiceRecord::from(&record).name, "n".repeat(64));
        record.name[..2].copy_from_slice(&[0xff, 0]);
        assert_eq!(ServiceRecord::from(&record).name, "\u{fffd}");
        assert_eq!(ServiceRecord::from(&record).address().service_mask, u64::MAX);
    }
}
